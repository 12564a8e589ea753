"""Forms made from JSON schemas: what they ask for, and what a browser sends back as the value that was meant."""

from signoff.web.forms.form import MISSING, Choice, Field, Form, build

__all__ = ["MISSING", "Choice", "Field", "Form", "build"]

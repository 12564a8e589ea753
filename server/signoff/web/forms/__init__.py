"""Forms made from JSON schemas: what they ask for, and what a browser sends back as the value that was meant."""

from signoff.web.forms.fields import MISSING, Choice, Field, Sent
from signoff.web.forms.form import BESIDE, Form, build

__all__ = ["BESIDE", "MISSING", "Choice", "Field", "Form", "Sent", "build"]

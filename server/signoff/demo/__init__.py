"""The example app behind `signoff demo`."""

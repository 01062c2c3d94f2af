"""Code that turns logs into numbers, tables and pages."""

"""Maintainers' scripts; no part of the package."""

"""Regions that reduce."""

"""Notifications for workers of an elastic job."""

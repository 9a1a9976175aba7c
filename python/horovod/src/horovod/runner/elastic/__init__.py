"""What workers of an elastic job are told."""

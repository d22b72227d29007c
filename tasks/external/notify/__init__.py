"""NOTIFY: messages to external addresses when windows open and close."""

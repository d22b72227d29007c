"""NOTIFY: tells external addresses of windows that open and close."""

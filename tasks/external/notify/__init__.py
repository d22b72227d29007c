"""NOTIFY: tells addresses outside of windows that open and close."""

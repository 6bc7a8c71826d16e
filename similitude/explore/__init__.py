"""The explorer: look at a Tversky network in the browser."""

"""Reading a Tversky network: what its layers see in an input, and why they answer as they do."""

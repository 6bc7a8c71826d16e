"""The paper's networks, ready made; each file stands alone, and imports what it needs."""

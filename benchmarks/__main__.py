import sys

from . import ratios
from .measure import machine

print(machine())
sys.exit(0 if ratios.check() else 1)

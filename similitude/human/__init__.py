"""People's similarity judgements: Tversky's model fitted to what people said, beside its rivals."""

from .judgements import Judgements, confusions, directed, rankings, ratings, similarities, triplets
from .model import TverskySimilarityModel
from .sheets import morse, read_csv

__all__ = [
    "Judgements",
    "TverskySimilarityModel",
    "confusions",
    "directed",
    "morse",
    "rankings",
    "ratings",
    "read_csv",
    "similarities",
    "triplets",
]

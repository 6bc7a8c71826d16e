"""Search by what is shared: exact retrieval by Tversky similarity, with an explanation of each hit."""

from .codes import QueryCodes, document_codes, query_codes
from .index import Hits, TverskyIndex
from .saved import NoIndex

__all__ = ["Hits", "NoIndex", "QueryCodes", "TverskyIndex", "document_codes", "query_codes"]

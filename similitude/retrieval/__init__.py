"""Search by what is shared: exact retrieval by Tversky similarity, with an explanation of each hit."""

from .codes import QueryCodes, document_codes, query_codes
from .index import Hits, TverskyIndex

__all__ = ["Hits", "QueryCodes", "TverskyIndex", "document_codes", "query_codes"]

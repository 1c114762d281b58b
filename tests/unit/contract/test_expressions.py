"""Names and collected keywords of a consuming package, read from source text."""

from tests.unit.contract.sources import broken, mcore, te
from tests.unit.contract.test_evaluation import FAILS, FOUR


def test_have_te_flag_follows_its_imports() -> None:
    source = """
        try:
            import transformer_engine as te
            from transformer_engine.pytorch import gone
            HAVE_TE = True
        except ImportError:
            HAVE_TE = False
        def wrapper():
            if HAVE_TE:
                te.pytorch.get(1, 2, 3, 4, 5)
    """
    effect = "cannot import name 'gone' from 'transformer_engine.pytorch'; swallowed: HAVE_TE = False"
    assert [("silently-off", effect)] == broken(source, FOUR)
    assert broken(source, FOUR + "\ngone = 1") == FAILS


def test_have_te_flag_follows_another_module() -> None:
    calls = mcore(
        {
            "extensions.py": "from transformer_engine.pytorch import gone, get as te_get\n",
            "block.py": """
                try:
                    from megatron.core.extensions import te_get
                    HAVE_TE = True
                except ImportError:
                    HAVE_TE = False
                def build():
                    if HAVE_TE: te_get(1, 2, 3, 4, 5)
            """,
        }
    )
    missing = [("definite", "cannot import name 'gone' from 'transformer_engine.pytorch'")]
    assert missing == broken(calls, te(FOUR))
    assert broken(calls, te(FOUR + "\ngone = 1")) == FAILS


def test_none_after_a_failed_import_guards_calls() -> None:
    source = """
        try:
            from transformer_engine.pytorch import gone as get
        except ImportError:
            get = None
        def wrapper():
            if get is not None:
                get(1, 2)
    """
    assert [kind for kind, _ in broken(source, FOUR)] == ["silently-off"]


def test_collected_keywords_keep_their_guards() -> None:
    source = """
        import transformer_engine as te
        from megatron.core.utils import is_te_min_version
        def extra(config):
            kw = {"weights": config.w}
            if is_te_min_version("1.9.0"):
                kw["device"] = "cpu"
            return kw
        def wrapper(config):
            kw = extra(config)
            if config.wide:
                if not is_te_min_version("1.9.0"):
                    kw.update(width=1)
            kw.pop("weights")
            te.pytorch.get(1, **kw)
    """
    calls = mcore(source)
    assert broken(calls, te(FOUR), "1.8.0") == [("definite", "get() got an unexpected keyword argument 'width'")]
    assert broken(calls, te(FOUR), "1.9.0") == [("definite", "get() got an unexpected keyword argument 'device'")]

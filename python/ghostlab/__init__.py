"""Reads the results that the command `ghostlab` writes.

>>> import ghostlab
>>> ghostlab.results("results/table2/tiny")      # a polars frame
>>> ghostlab.documents("results/table2/tiny")    # every choice of every document, with its log-likelihood
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import polars

__all__ = ["documents", "results"]

# Parquet files other than the main table of a run.
_BESIDE = {"documents.parquet", "channels.parquet", "latency.parquet"}


def results(folder: Union[str, PathLike[str]]) -> polars.DataFrame:
    """Returns the table of a results folder, with a row for each cell of a run or for each number of an artifact."""
    names = [name for name in _record(folder)["files"] if name.endswith(".parquet") and name not in _BESIDE]
    if len(names) != 1:
        raise FileNotFoundError(f"`{Path(folder)}` contains no table (figures store their numbers in numbers.json)")
    return _read(folder, names[0])


def documents(folder: Union[str, PathLike[str]]) -> polars.DataFrame:
    """Returns a row for each choice of each document, with its log-likelihood, characters, bytes and tokens."""
    return _read(folder, "documents.parquet")


def _record(folder: Union[str, PathLike[str]]) -> dict:
    record = Path(folder) / "run.json"
    if not record.is_file():
        raise FileNotFoundError(f"`{Path(folder)}` is not a ghostlab results folder: run.json is missing")
    return json.loads(record.read_text(encoding="utf-8"))


def _read(folder: Union[str, PathLike[str]], name: str) -> polars.DataFrame:
    try:
        import polars
    except ImportError as error:
        raise ImportError("reading tables requires polars: run `pip install 'ghostlab[polars]'`") from error
    path = Path(folder) / name
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` does not exist: the run scored no tasks, or is from an older ghostlab")
    return polars.read_parquet(path)

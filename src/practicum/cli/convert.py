"""`practicum convert FORMAT INPUT [OUTPUT]`: a published data set as a JSON file of tasks."""

from __future__ import annotations

from pathlib import Path

from practicum.data.convert import FOLDER_FORMATS, FORMATS, convert, write
from practicum.utils.terminal import ArgumentParser, say


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum convert", description=__doc__)
    parser.add_argument(
        "format",
        choices=(*FORMATS, *FOLDER_FORMATS),
        metavar="FORMAT",
        help=f"whose file it is: {', '.join((*FORMATS, *FOLDER_FORMATS))}",
    )
    parser.add_argument(
        "input",
        type=Path,
        help="the file of its authors or of the Hugging Face hub: JSON, .gz, .parquet, a folder",
    )
    parser.add_argument(
        "output", type=Path, nargs="?", help="the JSON file to write (default: FORMAT-INPUT.json in this folder)"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        help="folder for the texts of hotpotqa and squad (default: OUTPUT without .json, -corpus)",
    )
    parser.add_argument("--split", help="only this split of the authors' (mbpp: train, val, test, prompt)")
    args = parser.parse_args(argv)
    converted = convert(args.format, args.input, args.split)
    output = args.output or Path(f"{args.format}-{args.input.name.split('.')[0]}.json")
    corpus = args.corpus or output.with_name(f"{output.stem}-corpus")
    write(converted, output, corpus)
    texts = f", {len(converted.documents)} documents in {corpus}" if converted.documents else ""
    say(f"{len(converted.rows)} tasks in {output}{texts}")
    return 0

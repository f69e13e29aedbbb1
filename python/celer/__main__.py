"""The program celer, as `python -m celer` and as the script `celer` of the package."""
import sys

from . import _celer


def main() -> None:
    _celer.run_command(["celer", *sys.argv[1:]])


if __name__ == "__main__":
    main()

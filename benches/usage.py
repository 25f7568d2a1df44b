"""Command line of measurements without arguments. `--help` prints the documentation without a measurement."""

import argparse


def check(doc):
    """Prints `doc` for --help, and rejects all other arguments."""
    argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

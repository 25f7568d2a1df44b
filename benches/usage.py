"""The help of measurements that take no arguments: `--help` must tell, not measure."""

import argparse


def check(doc):
    """Tells what `doc` says where --help is asked for, and refuses any other argument."""
    argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

"""Feedline on a cluster of three real nodes: images, data, releases and training pods."""

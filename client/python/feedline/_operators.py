"""One method for each operator. Generated from `core/data/src/pipeline/operators/`; do not edit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from feedline._arguments import to_names


class Operators:
    """The operators of a pipeline."""

    def _operator(self, name: str, parallelism: int | None, **parameters: Any) -> Self:
        raise NotImplementedError

    def decode_image(self, column: str, *, parallelism: int | None = None) -> Self:
        """Decodes JPEG, PNG or WebP bytes.

        Args:
            column: Column of encoded bytes.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("decode_image", parallelism, column=column)

    def resize(self, column: str, size: Sequence[int], *, parallelism: int | None = None) -> Self:
        """Resizes images to a fixed size. The aspect ratio is not preserved.

        Args:
            column: Column of encoded bytes or decoded images.
            size: Height and width of the result.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("resize", parallelism, column=column, size=size)

    def center_crop(self, column: str, size: Sequence[int], resize: int | None = None, *, parallelism: int | None = None) -> Self:
        """Crops the center; torchvision's `CenterCrop`, after `Resize(resize)` if `resize` is set.

        Args:
            column: Column of encoded bytes or decoded images.
            size: Height and width of the result.
            resize: The length in pixels that the shorter side is resized to before the crop. `None` crops the original image, and pads
                smaller images with zeros as torchvision does.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("center_crop", parallelism, column=column, size=size, resize=resize)

    def random_resized_crop(
        self,
        column: str,
        size: Sequence[int],
        scale: Sequence[float] | None = None,
        ratio: Sequence[float] | None = None,
        *,
        parallelism: int | None = None,
    ) -> Self:
        """Crops a random area with a random aspect ratio and resizes it; torchvision's `RandomResizedCrop`.

        Args:
            column: Column of encoded bytes or decoded images.
            size: Height and width of the result.
            scale: Bounds of the crop's area as a fraction of the image's area.
            ratio: Bounds of the crop's width / height.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("random_resized_crop", parallelism, column=column, size=size, scale=scale, ratio=ratio)

    def random_horizontal_flip(self, column: str, p: float | None = None, *, parallelism: int | None = None) -> Self:
        """Flips images horizontally with a probability; torchvision's `RandomHorizontalFlip`.

        Args:
            column: Column of images or image tensors.
            p: Probability of a flip.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("random_horizontal_flip", parallelism, column=column, p=p)

    def random_grayscale(self, column: str, p: float | None = None, *, parallelism: int | None = None) -> Self:
        """Converts images to grayscale with a probability; torchvision's `RandomGrayscale`.

        Args:
            column: Column of images or of `uint8` tensors `[height, width, 3]`.
            p: Probability that an image is converted.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("random_grayscale", parallelism, column=column, p=p)

    def random_erasing(
        self,
        column: str,
        p: float | None = None,
        scale: Sequence[float] | None = None,
        ratio: Sequence[float] | None = None,
        value: float | None = None,
        *,
        parallelism: int | None = None,
    ) -> Self:
        """Fills a random rectangle of images with a probability; torchvision's `RandomErasing`.

        Args:
            column: Column of images or image tensors, channels last or first.
            p: Probability that a rectangle is erased.
            scale: Bounds of the rectangle's area as a fraction of the image's area.
            ratio: Bounds of the rectangle's height / width.
            value: The value that fills each channel of the rectangle.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("random_erasing", parallelism, column=column, p=p, scale=scale, ratio=ratio, value=value)

    def normalize(
        self,
        column: str,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: str | None = None,
        layout: Literal["hwc", "chw"] | None = None,
        *,
        parallelism: int | None = None,
    ) -> Self:
        """`(x / 255 - mean) / std` as float; torchvision's `ToDtype(scale=True)` and `Normalize`.

        Args:
            column: Column of image tensors, `uint8`, height x width x channels.
            mean: Mean per channel on the scale 0 to 1.
            std: Standard deviation per channel on the scale 0 to 1.
            dtype: Element type of the result: `float32` or `float16`.
            layout: Axis order of the result.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("normalize", parallelism, column=column, mean=mean, std=std, dtype=dtype, layout=layout)

    def cast(self, column: str, dtype: str, *, parallelism: int | None = None) -> Self:
        """Converts the element type of a column.

        Args:
            column: Column of scalars, lists or tensors, or of text that contains numbers.
            dtype: New element type.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("cast", parallelism, column=column, dtype=dtype)

    def select(self, columns: Sequence[str], *, parallelism: int | None = None) -> Self:
        """Selects columns, in the given order.

        Args:
            columns: Columns to keep, in this order.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("select", parallelism, columns=to_names(columns))

    def rename(self, columns: Mapping[str, str], *, parallelism: int | None = None) -> Self:
        """Renames columns.

        Args:
            columns: Maps new names to current names.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("rename", parallelism, columns=columns)

    def tokenize(
        self,
        column: str,
        tokenizer: str | os.PathLike[str],
        output: str | None = None,
        add_special_tokens: bool | None = None,
        *,
        parallelism: int | None = None,
    ) -> Self:
        """Splits text into token ids with a Hugging Face `tokenizer.json`.

        Args:
            column: Column of text.
            tokenizer: Path or URL of a Hugging Face `tokenizer.json`.
            output: The output column. By default the token ids replace the text column.
            add_special_tokens: Whether the tokenizer adds special tokens.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("tokenize", parallelism, column=column, tokenizer=tokenizer, output=output, add_special_tokens=add_special_tokens)

    def truncate(self, column: str, length: int, *, parallelism: int | None = None) -> Self:
        """Truncates lists to a length.

        Args:
            column: Column of lists.
            length: The maximum length in elements. Further elements are removed from the end.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("truncate", parallelism, column=column, length=length)

    def pad(self, column: str, length: int, value: int | None = None, *, parallelism: int | None = None) -> Self:
        """Pads lists to a length. The result is a tensor of fixed shape.

        Args:
            column: Column of lists.
            length: The length of every row after padding, in elements. A longer row fails.
            value: The padding value.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("pad", parallelism, column=column, length=length, value=value)

    def recode_jpeg(self, column: str, *, parallelism: int | None = None) -> Self:
        """Adds an index to JPEGs, so that the decoder reads only the data of a crop.

        Args:
            column: Column of encoded bytes.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("recode_jpeg", parallelism, column=column)

    def cache(self, tier: Literal["memory", "disk", "store"], *, parallelism: int | None = None) -> Self:
        """Caches its input rows for later passes.

        Args:
            tier: The tier that stores the rows.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("cache", parallelism, tier=tier)

    def batch(self, size: int, remainder: Literal["emit", "drop", "carry"] | None = None, *, parallelism: int | None = None) -> Self:
        """Groups rows into batches; the last operator.

        Args:
            size: The number of rows in a batch.
            remainder: What happens to the rows of an epoch that do not fill a batch.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("batch", parallelism, size=size, remainder=remainder)

    def bucket_by_length(
        self,
        columns: Sequence[str],
        boundaries: Sequence[int],
        batch_sizes: Sequence[int] | None = None,
        tokens: int | None = None,
        pad: Literal["longest", "boundary", "none"] | None = None,
        value: int | None = None,
        window: int | None = None,
        *,
        parallelism: int | None = None,
    ) -> Self:
        """Batches rows of similar length; the last operator, instead of `batch`. tf.data's `bucket_by_sequence_length`.

        Args:
            columns: Columns of lists. The length of a row is the length of its longest list in these columns.
            boundaries: The maximum row length of each bucket, in elements, in ascending order.
            batch_sizes: The number of rows in a batch of each bucket: one number per boundary, and optionally one for rows longer than the
                last boundary. Without the optional number, longer rows fail.
            tokens: The number of elements in a batch, including padding; replaces `batch_sizes`. Buckets of short rows get larger batches.
            pad: The length that the lists of a batch are padded to.
            value: The padding value.
            window: The number of rows that are bucketed together. The default depends on the batch sizes.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("bucket_by_length", parallelism, columns=to_names(columns), boundaries=boundaries, batch_sizes=batch_sizes, tokens=tokens, pad=pad, value=value, window=window)

    def pack(
        self,
        columns: Sequence[str],
        length: int,
        size: int,
        longer: Literal["fail", "truncate"] | None = None,
        value: int | None = None,
        window: int | None = None,
        *,
        parallelism: int | None = None,
    ) -> Self:
        """Packs several rows into one row of fixed length, and batches the packed rows; the last operator, instead of `batch`.

        Args:
            columns: Columns of lists. Every column of the input must be listed.
            length: The number of elements of a packed row in each column.
            size: The number of packed rows in a batch.
            longer: What happens to a row that is longer than `length`.
            value: The padding value.
            window: The number of rows that are packed together. The default depends on the batch size.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("pack", parallelism, columns=to_names(columns), length=length, size=size, longer=longer, value=value, window=window)

    def sample_neighbors(
        self,
        size: int,
        fanouts: Sequence[int] | Mapping[str, Sequence[int]],
        features: Sequence[str] | Mapping[str, str] | None = None,
        edge_features: Sequence[str] | None = None,
        layout: Literal["subgraph", "blocks"] | None = None,
        subgraph: Literal["sampled", "bidirectional"] | None = None,
        remainder: Literal["emit", "drop", "carry"] | None = None,
        graph: str | os.PathLike[str] | None = None,
        seed_type: str | None = None,
        replace: bool | None = None,
        disjoint: bool | None = None,
        weighted: bool | None = None,
        time: Mapping[str, Any] | None = None,
        resample: Literal["batch", "epoch", "never"] | None = None,
        exclude_seed_edges: Literal["none", "seeds", "both"] | None = None,
        negatives: Mapping[str, Any] | None = None,
        edge_ids: bool | None = None,
        placement: Literal["replicate", "partition"] | None = None,
        *,
        parallelism: int | None = None,
    ) -> Self:
        """Samples the neighbors of batches of seeds in a graph; the last operator, instead of `batch`. PyG's `NeighborLoader`.

        Args:
            size: The number of seeds in a batch.
            fanouts: The number of neighbors that are sampled for each node: one number per hop, or a mapping from relations, such as
                `author__writes__paper`, to such lists. -1 samples all neighbors. Relations that are not in the mapping are not sampled.
            features: The features of the nodes in a batch: a list of names, or a mapping from names to types. `TYPE.NAME` selects the
                feature of one node type.
            edge_features: The features of the edges in a batch. `RELATION.NAME` selects the feature of one relation.
            layout: The nodes that each hop expands: the nodes that the previous hop added, as in PyG, or all nodes, as in DGL.
            subgraph: Which edges between the nodes of a batch it contains: the sampled edges, or also their reverse, without duplicates.
            remainder: What happens to the seeds of an epoch that do not fill a batch.
            graph: Path or URL of the folder of the graph. By default the folder of the source.
            seed_type: The node type of the seeds, or the relation of the links. By default that of the seed set, or the only one of the
                graph.
            replace: Whether a neighbor may be sampled several times for a node.
            disjoint: Whether each seed has its own tree, which shares no nodes with other trees.
            weighted: Whether the probability of a neighbor is proportional to the weight of its edge.
            time: Samples only edges that are not later than the seed.
            resample: When the neighbors of a node are drawn again.
            exclude_seed_edges: Which edges between the nodes of a link are left out of the sample.
            negatives: The pairs of nodes that are drawn for each link, which a model is trained to distinguish from links.
            edge_ids: Whether a batch contains the position of each edge in the user's edge list.
            placement: Where the features of nodes are in memory: all of them on each worker of the job, or a part of them on each worker.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("sample_neighbors", parallelism, size=size, fanouts=fanouts, features=features, edge_features=to_names(edge_features), layout=layout, subgraph=subgraph, remainder=remainder, graph=graph, seed_type=seed_type, replace=replace, disjoint=disjoint, weighted=weighted, time=time, resample=resample, exclude_seed_edges=exclude_seed_edges, negatives=negatives, edge_ids=edge_ids, placement=placement)

    def repeat(self, count: int, *, parallelism: int | None = None) -> Self:
        """Makes several passes over the rows in each epoch, each pass in its own order; tf.data's `repeat(count)`.

        Args:
            count: The number of passes per epoch.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("repeat", parallelism, count=count)

    def burn(self, cpu_us: int, *, parallelism: int | None = None) -> Self:
        """Uses CPU time, for benchmarks.

        Args:
            cpu_us: CPU time per row in microseconds.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("burn", parallelism, cpu_us=cpu_us)

    def wait(self, ms: int, *, parallelism: int | None = None) -> Self:
        """Waits without using CPU time, for benchmarks.

        Args:
            ms: Time per row in milliseconds.
            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.
        """
        return self._operator("wait", parallelism, ms=ms)

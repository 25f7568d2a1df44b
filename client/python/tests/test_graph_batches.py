"""Sampled graphs as objects of PyG: attributes, one copy for all tensors, and empty graphs. The batches are built here, with the layout of
a worker."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import feedline
import numpy as np
import pytest
from test_gpu import _Gpu

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from feedline._convert import _CudaCopies  # noqa: E402 - needs PyTorch
from feedline._graph_batch import GraphSchema, Pyg  # noqa: E402

CITATIONS = {
    "layout": "subgraph",
    "hops": 2,
    "disjoint": False,
    "homogeneous": True,
    "node_types": ["paper"],
    "relations": [["paper", "cites", "paper"]],
    "seeds": {"nodes": "paper"},
    "rows": ["y", "input_id"],
}


class _SampledGraph:
    """A native batch whose arrays are in one slab, each at a multiple of 64 bytes."""

    def __init__(self, metadata: dict[str, Any] | None, arrays: dict[str, Any], seeds: int) -> None:
        self.graph = None if metadata is None else json.dumps(metadata)
        self._seeds = seeds
        self.bytes = np.zeros(sum(64 + -(-np.asarray(array).nbytes // 64) * 64 for array in arrays.values()), np.uint8)
        self._arrays, end = {}, 0
        for name, values in arrays.items():
            array = np.asarray(values)
            if array.dtype == object:
                self._arrays[name] = array
                continue
            end += 64
            place = self.bytes[end : end + array.nbytes].view(array.dtype).reshape(array.shape)
            place[...] = array
            place.flags.writeable = False
            self._arrays[name] = place
            end += -(-array.nbytes // 64) * 64

    def __len__(self) -> int:
        return self._seeds

    def numpy(self) -> dict[str, Any]:
        return dict(self._arrays)

    def slab(self) -> Any:
        return self.bytes if self.bytes.size else None


def _citations(**changes: Any) -> _SampledGraph:
    """Seeds 7 and 4 with the edges 9 -> 7, 4 -> 7, 1 -> 4 and then 2 -> 9."""
    arrays = {
        "n_id": np.array([7, 4, 9, 1, 2**32 - 1], np.uint32),
        "num_sampled_nodes": np.array([2, 2, 1], np.uint32),
        "x": np.arange(15, dtype=np.float16).reshape(5, 3),
        "year": np.arange(5, dtype=np.int32),
        "colptr": np.array([0, 2, 3, 4, 4], np.int32),
        "row": np.array([2, 1, 3, 4], np.int32),
        "e_id": np.array([50, 51, 52, 53], np.int64),
        "num_sampled_edges": np.array([3, 1], np.uint32),
        "y": np.array([1, 0], np.int8),
        "input_id": np.array([30, 31], np.int64),
        **changes,
    }
    return _SampledGraph(CITATIONS, arrays, 2)


def _convert(batch: _SampledGraph, converter: Pyg | None = None) -> Any:
    converter = converter or Pyg(None, True)
    started, _ = converter.start(batch)  # type: ignore[arg-type]
    return converter.finish(started)


def test_a_graph_has_the_attributes_of_pyg() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = _convert(_citations())
    assert data.edge_index.tolist() == [[2, 1, 3, 4], [0, 0, 1, 2]] and data.edge_index.dtype == torch.int64
    assert data.n_id.tolist() == [7, 4, 9, 1, 2**32 - 1] and data.n_id.dtype == torch.int64
    assert data.e_id.tolist() == [50, 51, 52, 53]
    assert data.x.dtype == torch.float16 and data.x.shape == (5, 3) and data.x[4].tolist() == [12, 13, 14]
    assert data.year.tolist() == [0, 1, 2, 3, 4]
    assert data.y.tolist() == data.y[: data.batch_size].tolist() == [1, 0]
    assert data.input_id.tolist() == [30, 31]
    assert data.num_sampled_nodes == [2, 2, 1] and data.num_sampled_edges == [3, 1]
    assert data.num_nodes == 5 and data.batch_size == 2


def test_the_tensors_of_a_graph_share_one_copy() -> None:
    batch = _citations()
    data = _convert(batch)
    owned = {data[name].untyped_storage().data_ptr() for name in ("x", "year", "y")}
    assert len(owned) == 1
    batch.bytes[:] = 0
    assert data.x[4].tolist() == [12, 13, 14]
    view = _convert(_citations(), Pyg(None, False))
    assert view.x[4].tolist() == [12, 13, 14]


def test_layers_of_blocks_expand_all_nodes_again() -> None:
    from torch_geometric.utils import trim_to_layer

    metadata = {**CITATIONS, "layout": "blocks"}
    arrays = {
        "n_id": np.array([7, 4, 9], np.uint32),
        "num_sampled_nodes": np.array([2, 1, 0], np.uint32),
        # The first hop expands two nodes, and the second hop all three.
        "colptr": np.array([0, 1, 1, 2, 3, 4], np.int32),
        "row": np.array([2, 1, 0, 0], np.int32),
        "num_sampled_edges": np.array([1, 3], np.uint32),
    }
    data = _convert(_SampledGraph({**metadata, "rows": []}, arrays, 2))
    assert data.edge_index.tolist() == [[2, 1, 0, 0], [0, 0, 1, 2]]
    trimmed = _convert(_citations())
    x, edge_index, _ = trim_to_layer(1, trimmed.num_sampled_nodes, trimmed.num_sampled_edges, trimmed.x, trimmed.edge_index)
    assert len(x) == 4 and edge_index.tolist() == [[2, 1, 3], [0, 0, 1]]


SHOP = {
    "layout": "subgraph",
    "hops": 1,
    "disjoint": True,
    "homogeneous": False,
    "node_types": ["user", "item"],
    "relations": [["user", "buys", "item"], ["item", "rev_buys", "user"]],
    "seeds": {"links": "user__buys__item"},
    "rows": ["label", "at", "user.x", "input_id"],
    "time": "at",
}


def test_types_and_links_have_stores_of_their_own() -> None:
    arrays = {
        "user.n_id": np.array([5, 6, 8], np.uint32),
        "user.batch": np.array([0, 1, 0], np.int32),
        "user.num_sampled_nodes": np.array([2, 1], np.uint32),
        "item.n_id": np.array([3, 3], np.uint32),
        "item.batch": np.array([0, 1], np.int32),
        "item.num_sampled_nodes": np.array([2, 0], np.uint32),
        "item.x": np.ones((2, 8), np.float32),
        "user__buys__item.colptr": np.array([0, 1, 1], np.int32),
        "user__buys__item.row": np.array([2], np.int32),
        "user__buys__item.num_sampled_edges": np.array([1], np.uint32),
        "user__buys__item.price": np.array([2.5], np.float64),
        "item__rev_buys__user.colptr": np.array([0, 0, 0], np.int32),
        "item__rev_buys__user.row": np.zeros(0, np.int32),
        "item__rev_buys__user.num_sampled_edges": np.array([0], np.uint32),
        "edge_label_index": np.array([0, 1, 0, 1], np.int32),
        "label": np.array([1, 0], np.int64),
        "at": np.array([100, 200], np.int64),
        "user.x": np.array([0.5, 0.25], np.float32),
        "input_id": np.array([9, 8], np.int64),
    }
    data = _convert(_SampledGraph(SHOP, arrays, 2))
    assert set(data.node_types) == {"user", "item"} and len(data.edge_types) == 2
    buys = data["user", "buys", "item"]
    assert buys.edge_index.tolist() == [[2], [0]] and buys.price.tolist() == [2.5]
    assert data["item", "rev_buys", "user"].edge_index.shape == (2, 0)
    assert data["user"].n_id.tolist() == [5, 6, 8] and data["item"].x.shape == (2, 8)
    assert data["user"].batch.tolist() == [0, 1, 0] and data["item"].batch.tolist() == [0, 1]
    assert buys.edge_label_index.tolist() == [[0, 1], [0, 1]] and buys.edge_label.tolist() == [1, 0]
    assert buys.edge_label_time.tolist() == [100, 200] and buys.input_id.tolist() == [9, 8]
    assert buys["user.x"].tolist() == [0.5, 0.25], "a column of the rows is not a feature"
    assert "x" not in data["user"] and data["user"].num_sampled_nodes == [2, 1]


def test_negatives_have_the_attributes_of_pyg() -> None:
    ends = np.array([0, 1, 1, 0, 0, 1, 0, 0], np.int32)
    arrays = {
        "user.n_id": np.array([5, 6], np.uint32),
        "item.n_id": np.array([3, 4], np.uint32),
        "edge_label_index": ends,
        "edge_label": np.array([1, 2, 0, 0], np.int64),
        "label": np.array([0, 1], np.int64),
        "at": np.array([100, 200], np.int64),
    }
    metadata = {**SHOP, "relations": [], "rows": ["label", "at"], "negatives": {"mode": "binary", "amount": 1}}
    buys = ("user", "buys", "item")
    data = _convert(_SampledGraph(metadata, arrays, 2))
    assert data[buys].edge_label_index.tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]] and data[buys].edge_label.tolist() == [1, 2, 0, 0]
    assert data[buys].edge_label_time.tolist() == [100, 200, 100, 200] and data[buys].label.tolist() == [0, 1]
    del arrays["edge_label_index"], arrays["edge_label"]
    arrays |= {"src_index": ends[:2], "dst_pos_index": ends[2:4], "dst_neg_index": ends[4:].reshape(2, 2)}
    metadata["negatives"] = {"mode": "triplet", "amount": 2}
    data = _convert(_SampledGraph(metadata, arrays, 2))
    assert data["user"].src_index.tolist() == [0, 1] and data["item"].dst_pos_index.tolist() == [1, 0]
    assert data["item"].dst_neg_index.tolist() == [[0, 1], [0, 0]] and data["item"].dst_neg_index.dtype == torch.int64
    assert data["user"].seed_time.tolist() == data["item"].seed_time.tolist() == [100, 200]


def test_seed_times_have_the_name_of_pyg() -> None:
    schema = GraphSchema.parse(json.dumps({**CITATIONS, "rows": ["time", "y"], "time": "time"}))
    assert schema.owner("time") == (None, "seed_time") and schema.owner("y") == (None, "y")


def test_text_becomes_lists_and_missing_labels_are_rejected() -> None:
    data = _convert(_citations(y=np.array(["a", "b"], dtype=object)))
    assert data.y == ["a", "b"]
    batch = _citations()
    batch._arrays["y"] = np.ma.MaskedArray(batch._arrays["y"], mask=[True, False])
    with pytest.raises(feedline.WrongUse, match="'y' has 1 missing"):
        _convert(batch)


def test_a_step_without_seeds_is_an_empty_graph() -> None:
    arrays = {name: array[:0] for name, array in _citations().numpy().items()}
    data = _convert(_SampledGraph(CITATIONS, arrays, 0))
    assert data.x.shape == (0, 3) and data.edge_index.shape == (2, 0) and data.batch_size == 0
    assert data.num_sampled_nodes == [0, 0, 0] and data.num_sampled_edges == [0, 0]
    unknown = _convert(_SampledGraph(None, {}, 0))
    assert unknown.edge_index.shape == (2, 0) and unknown.batch_size == unknown.num_nodes == 0


def test_rows_are_rejected() -> None:
    with pytest.raises(feedline.WrongUse, match="end the pipeline with sample_neighbors"):
        _convert(_SampledGraph(None, {"x": np.zeros(3)}, 3))


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_graph_moves_to_the_gpu_in_one_copy(is_pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _Gpu(torch)
    copied: list[int] = []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: is_pinned)
    move = torch.Tensor.to

    def counted(tensor: Any, *args: Any, **options: Any) -> Any:
        if options.get("non_blocking"):
            copied.append(tensor.nbytes)
        return move(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", counted)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    converter = Pyg("cpu", True)
    converter._cuda = _CudaCopies(gpu, torch.device("cpu"))
    batches = [_citations(), _citations(y=np.array([5, 6], np.int8))]
    started = [converter.start(batch)[0] for batch in batches]  # type: ignore[arg-type]
    first, second = (converter.finish(one) for one in started)
    assert copied == [batch.bytes.size for batch in batches], "each graph is one copy"
    assert gpu.pinned == (0 if is_pinned else 2)
    assert first.y.tolist() == [1, 0] and second.y.tolist() == [5, 6]
    assert first.edge_index.tolist() == [[2, 1, 3, 4], [0, 0, 1, 2]]


def test_arrays_outside_of_the_slab_are_copied_too() -> None:
    batch = _citations()
    batch._arrays["x"] = batch._arrays["x"].astype(np.float32)
    data = _convert(batch)
    assert data.x.dtype == torch.float32 and data.x[4].tolist() == [12, 13, 14] and data.year.tolist() == [0, 1, 2, 3, 4]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(feedline.WrongUse, match=r"torch_geometric cannot be imported .*; pip install 'feedline\[pyg\]'$"):
        Pyg(None, True)

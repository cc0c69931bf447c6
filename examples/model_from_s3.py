"""Bring a model from S3 to all nodes: each node downloads it, or one downloads it and the others fetch it from that node.

Downloads from S3 are slow and cost money, while the network between nodes is fast. One task downloads the model as an object
in its node's store. Tasks on other nodes get the reference, and their nodes fetch the model from any node that has it or a
part of it; a node passes on the parts that it has while it receives the rest.

    python examples/model_from_s3.py --megabytes 100 --nodes 3

This example needs `s3fs`, and `moto[server]`, which simulates S3 on this machine (`pip install "minray[test-s3]"`). Here the
download is about as fast as the network between the nodes, so compare the number of downloads, not the seconds.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import minray as ray
from minray.cluster_utils import Cluster
from minray.experimental import get_object_locations
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MODEL = "s3://models/model.bin"


@ray.remote
def download(url: str) -> np.ndarray:
    """Return the model, which stays in the object store of the node where this task runs."""
    import s3fs

    with s3fs.S3FileSystem().open(url, "rb") as file:
        return np.frombuffer(file.read(), np.float32)


@ray.remote
def predict(model: np.ndarray, x: float) -> float:
    """Read the whole model in the object store, without a copy."""
    return float(model.sum(dtype=np.float64)) * x


def everybody_downloads(places: list[NodeAffinitySchedulingStrategy]) -> tuple[list[ray.ObjectRef], list[float]]:
    models = [download.options(scheduling_strategy=place).remote(MODEL) for place in places]
    pairs = zip(places, models, strict=True)
    calls = [predict.options(scheduling_strategy=place).remote(model, 2.0) for place, model in pairs]
    return models, ray.get(calls)


def one_downloads(places: list[NodeAffinitySchedulingStrategy]) -> tuple[list[ray.ObjectRef], list[float]]:
    model = download.options(scheduling_strategy=places[0]).remote(MODEL)
    return [model], ray.get([predict.options(scheduling_strategy=place).remote(model, 2.0) for place in places])


@contextmanager
def bucket_with(content: bytes) -> Iterator[None]:
    """Run a server that behaves like S3. This program and its workers find it through environment variables."""
    try:
        import s3fs
        from moto.server import ThreadedMotoServer
    except ModuleNotFoundError as error:
        raise SystemExit(f'this example needs {error.name}: pip install "minray[test-s3]"') from None

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    access = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(access, AWS_ENDPOINT_URL=f"http://{host}:{port}")
    try:
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("models")
        s3fs.S3FileSystem(skip_instance_cache=True).pipe(MODEL, content)
        yield
    finally:
        server.stop()


def main(megabytes: int = 20, nodes: int = 3) -> dict[str, object]:
    model = np.ones(megabytes * 1_000_000 // 4, np.float32)
    store = {"object_store_memory": 4 * model.nbytes}
    told: dict[str, object] = {}
    with bucket_with(model.tobytes()):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **store})
        try:
            for _ in range(nodes - 1):
                cluster.add_node(num_cpus=1, **store)
            cluster.wait_for_nodes()
            ray.init(address=cluster.address)
            places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
            for way in (everybody_downloads, one_downloads):
                begin = time.perf_counter()
                models, answers = way(places)
                seconds = time.perf_counter() - begin
                assert answers == [2.0 * model.size] * nodes
                copies = sum(len(known["node_ids"]) for known in get_object_locations(models).values())
                told[way.__name__.replace("_", " ")] = {"downloads": len(models), "copies": copies}
                told[f"seconds, {way.__name__.replace('_', ' ')}"] = round(seconds, 2)
                del models
        finally:
            ray.shutdown()
            cluster.shutdown()
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Bring a model to all nodes.")
    parser.add_argument("--megabytes", type=int, default=100, help="size of the model")
    parser.add_argument("--nodes", type=int, default=3)
    arguments = parser.parse_args()
    for name, value in main(arguments.megabytes, arguments.nodes).items():
        print(f"{name}: {value}")

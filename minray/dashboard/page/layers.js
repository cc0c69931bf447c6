// Places a graph in layers, from left to right, so that each vertex is left of what it waits for.
//
// The four steps are those of Sugiyama. Edges that close a cycle are turned round for the layout. A vertex is in the layer that its longest
// path gives it. Vertices of a layer are ordered by the middle of their neighbours, forward and back a few times. The functions know nothing
// of drawing.

const SWEEPS = 6;

/** Return {layers, turned, routes}: lists of ids, the keys of edges that go back, and for each edge over several layers the ids of its places
 * in the layers between. */
export function layered(ids, edges) {
  const ahead = new Map(ids.map((id) => [id, []]));
  for (const { source, target } of edges) if (source !== target) ahead.get(source)?.push(target);
  const turned = backEdges(ids, ahead);
  const layerOf = longestPaths(ids, ahead, turned);
  const layers = [];
  for (const id of ids) (layers[layerOf.get(id)] ??= []).push(id);
  const neighbours = { left: new Map(), right: new Map() };
  const routes = new Map();
  for (const { source, target } of edges) {
    const [from, to] = turned.has(keyOf(source, target)) ? [target, source] : [source, target];
    if (from === to || !layerOf.has(from) || !layerOf.has(to)) continue;
    const way = [from];
    for (let layer = layerOf.get(from) + 1; layer < layerOf.get(to) && from === source; layer += 1) {
      way.push(`${keyOf(source, target)}\n${layer}`);
      layers[layer].push(way.at(-1));
    }
    if (way.length > 1) routes.set(keyOf(source, target), way.slice(1));
    way.push(to);
    way.slice(1).forEach((next, index) => {
      pushTo(neighbours.right, way[index], next);
      pushTo(neighbours.left, next, way[index]);
    });
  }
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) order(layers, sweep % 2 ? neighbours.right : neighbours.left, sweep % 2);
  return { layers, turned, routes };
}

export function keyOf(source, target) {
  return `${source}\n${target}`;
}

function pushTo(map, key, value) {
  if (!map.has(key)) map.set(key, []);
  map.get(key).push(value);
}

/** Return the keys of the edges that lead back to a vertex on the path on which they are found. */
function backEdges(ids, ahead) {
  const turned = new Set();
  const state = new Map();
  for (const start of ids) {
    if (state.has(start)) continue;
    const path = [[start, 0]];
    state.set(start, "open");
    while (path.length) {
      const step = path[path.length - 1];
      const next = ahead.get(step[0])[step[1]++];
      if (next === undefined) {
        state.set(step[0], "done");
        path.pop();
      } else if (state.get(next) === "open") turned.add(keyOf(step[0], next));
      else if (!state.has(next) && ahead.has(next)) {
        state.set(next, "open");
        path.push([next, 0]);
      }
    }
  }
  return turned;
}

function longestPaths(ids, ahead, turned) {
  const into = new Map(ids.map((id) => [id, 0]));
  const forward = new Map(ids.map((id) => [id, []]));
  for (const [source, targets] of ahead) {
    for (const target of targets) {
      const [from, to] = turned.has(keyOf(source, target)) ? [target, source] : [source, target];
      if (!into.has(to)) continue;
      forward.get(from).push(to);
      into.set(to, into.get(to) + 1);
    }
  }
  const layerOf = new Map(ids.map((id) => [id, 0]));
  const ready = ids.filter((id) => into.get(id) === 0);
  for (const id of ready) {
    for (const next of forward.get(id)) {
      layerOf.set(next, Math.max(layerOf.get(next), layerOf.get(id) + 1));
      into.set(next, into.get(next) - 1);
      if (into.get(next) === 0) ready.push(next);
    }
  }
  return layerOf;
}

function order(layers, neighbours, isBack) {
  const place = new Map();
  for (const layer of layers) layer.forEach((id, index) => place.set(id, index));
  for (const layer of isBack ? [...layers].reverse() : layers) {
    const middle = new Map(layer.map((id, index) => {
      const places = (neighbours.get(id) ?? []).map((other) => place.get(other));
      return [id, places.length ? places.reduce((sum, one) => sum + one, 0) / places.length : index];
    }));
    layer.sort((one, other) => middle.get(one) - middle.get(other));
    layer.forEach((id, index) => place.set(id, index));
  }
}

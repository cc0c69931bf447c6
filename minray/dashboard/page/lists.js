// The tables: which columns each kind of thing shows, in which order, and what they are called.
//
// Names of states and columns are Ray's, so that an operator finds them. A column that the server does not send is left out; what it sends
// beside these appears with "All columns".

import { link } from "./router.js";
import { TableView } from "./table.js";

const ACTOR_STATES = ["DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING", "DEAD"];
const TASK_STATES = [
  "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "PENDING_ARGS_FETCH", "PENDING_ACTOR_TASK_ARGS_FETCH",
  "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "RUNNING", "FINISHED", "FAILED",
];

const toLogs = (key) => (row) => row[key] && link(["logs"], key === "worker_id" ? { search: row[key].slice(0, 8) } : { filter: `${key}=${row[key]}` });

export const LISTS = {
  nodes: {
    title: "Nodes", table: "nodes", id: "node_id", states: ["ALIVE", "DEAD"],
    note: "What the machines have, and what of it is used.",
    columns: [
      { key: "node_id", label: "Node", kind: "node" },
      { key: "node_name", label: "Name", kind: "text" },
      { key: "health", label: "Health", kind: "state", width: 13 },
      { key: "node_ip", label: "IP", kind: "short", width: 15 },
      { key: "is_head_node", label: "Head", kind: "flag", width: 8 },
      { key: "cpu_percent", label: "CPU", kind: "share", optional: true, of: (row) => row.cpu_percent / 100, sort: "cpu_percent", width: 16, hint: "Use of the machine's processors, measured" },
      { key: "ram_used", label: "Memory", kind: "used", optional: true, of: (row) => [row.ram_used, row.ram_total], sort: "ram_used", parts: ["ram_total"], hint: "Memory of the machine, measured" },
      { key: "cpu_used", label: "CPUs taken", kind: "counted", hint: "CPUs that tasks and actors have asked for", of: (row) => [row.cpu_used, row.cpu_total], sort: "cpu_used", parts: ["cpu_total"] },
      { key: "gpu_used", label: "GPUs taken", kind: "counted", of: (row) => [row.gpu_used, row.gpu_total], sort: "gpu_used", parts: ["gpu_total"], width: 14 },
      { key: "memory_used", label: "Memory taken", more: true, hint: "Memory that tasks and actors have asked for", kind: "used", of: (row) => [row.memory_used, row.memory_total], sort: "memory_used", parts: ["memory_total"] },
      { key: "store_used", label: "Object store", kind: "used", of: (row) => [row.store_used, row.store_total], sort: "store_used", parts: ["store_total"] },
      { key: "spilled_bytes", label: "Spilled", kind: "bytes" },
      { key: "disk_used", label: "Disk", kind: "used", optional: true, of: (row) => [row.disk_used, row.disk_total], sort: "disk_used", parts: ["disk_total", "disk_free"] },
      { key: "network_sent_speed", label: "Sent/s", kind: "bytes", more: true },
      { key: "network_received_speed", label: "Received/s", kind: "bytes", more: true },
      { key: "num_objects", label: "Objects", kind: "number" },
      { key: "num_workers", label: "Workers", kind: "number" },
      { key: "num_waiting", label: "Waiting", kind: "number", hint: "Requests for workers that wait" },
      { key: "logs", label: "Logs", kind: "short", width: 7, of: () => "logs", href: toLogs("node_id") },
      { key: "state_message", label: "Message", kind: "text" },
      { key: "hostname", label: "Host", kind: "text", more: true },
      { key: "state", label: "State", kind: "state", width: 10, more: true },
      { key: "num_drivers", label: "Drivers", kind: "number", more: true },
      { key: "resources_total", label: "Resources", kind: "resources", more: true },
      { key: "resources_available", label: "Available", kind: "resources", more: true },
      { key: "fallback_bytes", label: "Store on disk", kind: "bytes", width: 14, more: true },
      { key: "labels", label: "Labels", kind: "text", more: true },
      { key: "pid", label: "PID", kind: "pid", more: true },
    ],
  },
  workers: {
    title: "Workers", table: "workers", id: "worker_id",
    note: "The processes that run tasks and actors, and the drivers.",
    columns: [
      { key: "worker_id", label: "Worker", kind: "worker" },
      { key: "worker_type", label: "Type", kind: "short", width: 12 },
      { key: "is_alive", label: "Alive", kind: "flag" },
      { key: "state", label: "State", kind: "state", width: 18 },
      { key: "pid", label: "PID", kind: "pid" },
      { key: "node_id", label: "Node", kind: "node" },
      { key: "actor_id", label: "Actor", kind: "actor" },
      { key: "job_id", label: "Job", kind: "job", width: 11 },
      { key: "ip", label: "IP", kind: "short", width: 15, more: true },
      { key: "exit_type", label: "Exit", kind: "state", width: 27 },
      { key: "exit_detail", label: "Exit detail", kind: "text" },
      { key: "stack", label: "Stack", kind: "short", width: 8, of: (row) => (row.is_alive ? "stack" : ""), href: (row) => row.is_alive && link(["stacks"], { process: row.worker_id }) },
      { key: "logs", label: "Logs", kind: "short", width: 7, of: () => "logs", href: toLogs("worker_id") },
    ],
  },
  jobs: {
    title: "Jobs", table: "jobs", id: "job_id", states: ["RUNNING", "SUCCEEDED"], stateKey: "status",
    note: "Drivers that use the cluster, or have used it.",
    columns: [
      { key: "job_id", label: "Job", kind: "job" },
      { key: "status", label: "Status", kind: "state", width: 14 },
      { key: "entrypoint", label: "Entry point", kind: "text" },
      { key: "driver_info", label: "Driver", kind: "text", of: (row) => row.driver_info && `pid ${row.driver_info.pid} on ${row.driver_info.node_ip_address}`, width: 30 },
      { key: "start_time", label: "Started", kind: "moment" },
      { key: "end_time", label: "Ended", kind: "moment" },
      { key: "duration", label: "Duration", kind: "seconds", of: (row) => row.start_time && ((row.end_time || Date.now()) - row.start_time) / 1000 },
      { key: "tasks", label: "Tasks", kind: "short", width: 8, of: () => "tasks", href: (row) => link(["tasks"], { filter: `job_id=${row.job_id}` }) },
      { key: "actors", label: "Actors", kind: "short", width: 8, of: () => "actors", href: (row) => link(["actors"], { filter: `job_id=${row.job_id}` }) },
    ],
  },
  actors: {
    title: "Actors", table: "actors", id: "actor_id", states: ACTOR_STATES,
    note: "Newest first. The page of a dead actor says why it died.",
    columns: [
      { key: "actor_id", label: "Actor", kind: "actor" },
      { key: "class_name", label: "Class", kind: "text" },
      { key: "name", label: "Name", kind: "text" },
      { key: "state", label: "State", kind: "state", width: 25 },
      { key: "num_restarts", label: "Restarts", kind: "restarts", of: (row) => [row.num_restarts, row.max_restarts], sort: "num_restarts", parts: ["max_restarts"] },
      { key: "death_cause", label: "Death", kind: "text", of: (row) => row.death_cause && `${row.death_cause.kind}: ${row.death_cause.message}` },
      { key: "pid", label: "PID", kind: "pid" },
      { key: "node_id", label: "Node", kind: "node" },
      { key: "job_id", label: "Job", kind: "job", width: 11 },
      { key: "start_time", label: "Started", kind: "moment" },
      { key: "is_detached", label: "Detached", kind: "flag", width: 12 },
      { key: "ray_namespace", label: "Namespace", kind: "text", more: true },
      { key: "end_time", label: "Ended", kind: "moment", more: true },
      { key: "owner_id", label: "Owner", kind: "worker", more: true },
    ],
  },
  tasks: {
    title: "Tasks", table: "tasks", id: "task_id", states: TASK_STATES,
    note: "The page of a task says why it is not done.",
    columns: [
      { key: "task_id", label: "Task", kind: "task" },
      { key: "name", label: "Name", kind: "text" },
      { key: "state", label: "State", kind: "state", width: 33 },
      { key: "attempt_number", label: "Attempt", kind: "number", width: 10 },
      { key: "type", label: "Type", kind: "short", width: 24 },
      { key: "error_type", label: "Error", kind: "text" },
      { key: "required_resources", label: "Resources", kind: "resources" },
      { key: "node_id", label: "Node", kind: "node" },
      { key: "worker_pid", label: "PID", kind: "pid" },
      { key: "actor_id", label: "Actor", kind: "actor" },
      { key: "job_id", label: "Job", kind: "job", width: 11 },
      { key: "func_or_class_name", label: "Function or class", kind: "text", more: true },
      { key: "parent_task_id", label: "Parent", kind: "task", more: true },
      { key: "worker_id", label: "Worker", kind: "worker", more: true },
      { key: "error_message", label: "Error message", kind: "text", more: true },
    ],
  },
  objects: {
    title: "Objects", table: "objects", id: "object_id", sort: "-object_size",
    note: "One row for each object and process that refers to it. The owner decides when an object is freed.",
    columns: [
      { key: "object_id", label: "Object", kind: "object" },
      { key: "object_size", label: "Size", kind: "bytes" },
      { key: "owner", label: "Owner", kind: "short", width: 17, href: (row) => row.owner_id && link(["workers", row.owner_id]) },
      { key: "holder", label: "Held by", kind: "short", width: 17, href: (row) => row.worker_id && link(["workers", row.worker_id]), parts: ["worker_id", "owner_id"] },
      { key: "reference_type", label: "Reference", kind: "short", width: 29 },
      { key: "copies", label: "Copies", kind: "text", of: (row) => row.copies?.map(copyText).join(" · "), width: 42 },
      { key: "is_spilled", label: "Spilled", kind: "flag", width: 10 },
      { key: "borrowers", label: "Borrowers", kind: "number", width: 12 },
      { key: "call_site", label: "Call site", kind: "text", of: (row) => (row.call_site === "disabled" ? "not recorded" : row.call_site), sort: "call_site" },
      { key: "task_status", label: "Task", kind: "state", width: 27 },
      { key: "node_id", label: "Node", kind: "node", more: true },
      { key: "attempt_number", label: "Attempt", kind: "number", more: true },
      { key: "type", label: "Process", kind: "short", width: 10, more: true },
      { key: "pid", label: "PID", kind: "pid", more: true },
      { key: "ip", label: "IP", kind: "short", width: 15, more: true },
    ],
  },
  placement_groups: {
    title: "Placement groups", table: "placement_groups", id: "placement_group_id",
    states: ["PENDING", "PREPARED", "CREATED", "RESCHEDULING", "REMOVED"],
    note: "Resources that are reserved together. Each bundle is on one node.",
    columns: [
      { key: "placement_group_id", label: "Group", kind: "placement_group" },
      { key: "name", label: "Name", kind: "text" },
      { key: "state", label: "State", kind: "state", width: 16 },
      { key: "strategy", label: "Strategy", kind: "short", width: 15 },
      { key: "bundles", label: "Bundles", kind: "text", of: (row) => row.bundles?.map(bundleText).join(" · ") },
      { key: "creator_job_id", label: "Job", kind: "job", width: 11 },
      { key: "is_detached", label: "Detached", kind: "flag", width: 12 },
    ],
  },
};

/** Say what a bundle reserves, and where. */
export function bundleText(bundle, namesNode = true) {
  const needs = Object.entries(bundle.unit_resources ?? {}).map(([name, amount]) => `${name} ${amount}`).join(", ");
  return `${bundle.bundle_index}: ${needs || "nothing"} ${bundle.node_id ? `on ${namesNode ? bundle.node_id.slice(0, 8) : ""}` : "without a node"}`;
}

/** Say where a copy of an object is. */
export function copyText(copy, namesNode = true) {
  return `${namesNode ? `${copy.node_id.slice(0, 8)} ` : ""}${copy.state}${copy.is_primary ? ", first copy" : ""}${copy.pins ? `, ${copy.pins} readers` : ""}`;
}

export const open = (place, route) => new TableView(LISTS[route.path[0]], place, route);

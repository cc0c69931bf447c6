// The kinds of faults by what they do, in words, and the faults that one click adds to a run.
//
// The names on the left are those of minray/simulation/faults.py. An aim becomes one question of the oracle: its kind, and the
// number of the form in which it strikes.

/** Kinds that the seed may draw: [kind, what it does]. The first group harms no program. */
export const KINDS = {
  "Faults that no program may notice": [
    ["delay", "messages are late by up to 0.1 s"],
    ["stall", "a process stands still for a moment"],
    ["preempt", "a thread gives way to the loop"],
    ["duplicate", "requests arrive twice"],
    ["break", "connections break"],
    ["reap", "a parent hears late of a child's end"],
  ],
  "Faults with which a system must deal (at most two strike)": [
    ["crash", "a worker dies"],
    ["long_stall", "a worker stands still for seconds"],
    ["long_delay", "messages are late by seconds"],
    ["reset", "messages or answers are lost"],
    ["cut", "two nodes do not hear each other"],
    ["node_loss", "a machine is gone"],
  ],
};

/** What a click can do to a process: [text with @ for its name, kind, answer]. */
export const OF_PROCESS = [
  ["Kill @", "crash", 1],
  ["Stall @ for 1 s", "long_stall", 1],
  ["Stall @ for 15 s", "long_stall", 2],
  ["Lose the machine of @", "node_loss", 1],
];

/** What a click can do to a message: [text, kind, answer]. */
export const OF_MESSAGE = [
  ["Lose it", "reset", 1],
  ["Lose its answer", "reset", 2],
  ["Duplicate it", "duplicate", 3],
  ["Delay it by 1 s", "long_delay", 1],
  ["Cut the wire for 8 s", "cut", 3],
];

/** Say a fault that has struck, given as [key, answer], in a few words. */
export function say([key, answer]) {
  const [kind, ...place] = key;
  return `${kind.replaceAll("_", " ")} (${answer}): ${place.join(", ")}`;
}

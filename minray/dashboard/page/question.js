// What a view asks the server: one question at a time, so that an older answer never replaces a newer one.

import { trouble } from "./dom.js";

export class Question {
  /** `place` shows why there is no answer, with a button that asks again. */
  constructor(place) {
    this.place = place;
  }

  /** Ask `question(signal)` and give its answer to `take(answer, signal)`, or the error to `fail`. The question before is dropped. */
  async ask(question, take, fail = (error) => this.place.replaceChildren(trouble(error.message, () => this.ask(question, take)))) {
    this.stop();
    this.controller = new AbortController();
    const { signal } = this.controller;
    try {
      const answer = await question(signal);
      if (signal.aborted) return;
      this.place?.replaceChildren();
      await take(answer, signal);
    } catch (error) {
      if (!signal.aborted) fail(error);
    }
  }

  stop() {
    this.controller?.abort();
  }
}

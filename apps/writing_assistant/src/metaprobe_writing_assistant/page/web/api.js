// Everything that the page asks of its server.

/** What the server refused, or that it could not be reached (status 0). */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks the server; returns its JSON. Raises `Refused` with a message for people. */
export async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "The program behind this page does not answer. Start it again (metaprobe assist).");
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, said.error ?? `The page was refused (${answer.status}).`);
  return said;
}

/**
 * Listens to a job until its end. `on.text`, `on.stage` and so on are called with the field of that name.
 * Returns a promise of true at the end of the job, and of false where the job is not known any more.
 */
export function listen(path, on) {
  return new Promise((done) => {
    const source = new EventSource(path);
    const finish = (found) => (source.close(), done(found));
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      for (const [name, value] of Object.entries(event)) on[name]?.(value, event);
    };
    source.addEventListener("end", () => finish(true));
    // The browser connects again by itself, and says what it has heard. It gives up where the job is gone.
    source.onerror = () => source.readyState === EventSource.CLOSED && finish(false);
  });
}

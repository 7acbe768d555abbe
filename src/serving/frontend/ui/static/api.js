// Requests to the page's server. The key is kept in this tab's memory only.
let key = "";

export function useKey(given) {
  key = given;
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error?.message ?? `the server answered ${response.status}`);
}

export async function about() {
  return (await checked(await fetch("api/about", { headers: headers() }))).json();
}

// Yields {name, data} up to the last event; throws ApiError, AbortError, or TypeError if the server is gone.
export async function* run(question, signal) {
  const asked = {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(question),
    signal,
  };
  const response = await checked(await fetch("api/runs", asked));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) yield parsed(event);
  }
}

function parsed(event) {
  const found = { name: "", data: "" };
  for (const line of event.split("\n")) {
    if (line.startsWith("event: ")) found.name = line.slice(7);
    if (line.startsWith("data: ")) found.data += line.slice(6);
  }
  return { name: found.name, data: JSON.parse(found.data) };
}

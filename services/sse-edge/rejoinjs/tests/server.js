// A server that is a function: fetch for the tests of subscribe and publish. Its answers
// are written out in each test.

const encoder = new TextEncoder()

// serve returns a fetch whose n-th answer is the n-th of the list, and the last one
// from then on. It keeps the requests.
export function serve(...answers) {
  const requests = []
  const fetch = async (url, { method = 'GET', headers, body, signal }) => {
    requests.push({ url: new URL(url), method, headers: Object.fromEntries(headers), body })
    return answers[Math.min(requests.length, answers.length) - 1](signal)
  }
  return { fetch, requests }
}

// streamed answers with an event stream that ends.
export const streamed = (text) => () => new Response(text, { headers: { 'Content-Type': 'text/event-stream' } })

// live answers with an event stream that stays open and silent. Each text is
// a chunk of its own; those that were not read are lost when the connection is given up.
export const live = (...texts) => (signal) => {
  const body = new ReadableStream({
    start(controller) {
      for (const text of texts) controller.enqueue(encoder.encode(text))
      signal.addEventListener('abort', () => controller.error(signal.reason))
    },
  })
  return new Response(body, { headers: { 'Content-Type': 'text/event-stream; charset=utf-8' } })
}

// hanging never answers.
export const hanging = (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))

export const unreachable = () => { throw new TypeError('fetch failed') }

export const ended = () => new Response(null, { status: 204 })

export const problem = (status, code, headers = {}) => () =>
  new Response(JSON.stringify({ status, code, title: 'It did not work.' }), { status, headers: { 'Content-Type': 'application/problem+json', ...headers } })

// redirected is an answer of another address, to which fetch takes no token.
export const redirected = (response) => Object.defineProperties(response, { redirected: { value: true }, url: { value: 'https://rejoin.test/v1/x' } })

export const json = (value, status = 200) => () => new Response(JSON.stringify(value), { status })

// Blocks of an event stream.
export const id = (sequence, tag = 'abcdefg') => `s_${tag}_${sequence}`
export const connect = (sequence, more = {}) =>
  block({ event: 'connect', id: sequence === null ? null : id(sequence), data: { session: 'x', stream: 's', exists: true, resumed: false, oldest: null, retainedFor: 3600, ...more } })
export const message = (sequence, n = sequence) => block({ id: id(sequence), data: { n } })
export const cursor = (sequence) => block({ event: 'cursor', id: id(sequence), data: {} })
export const gap = (sequence, reason) =>
  block({ event: 'gap', id: id(sequence), data: { reason, certain: true, stream: 's', requested: id(9), resumesAt: id(sequence) } })
export const close = (sequence) => block({ event: 'close', id: id(sequence), data: { status: 'closed', session: 'x', stream: 's' } })

export function block({ event = null, id = null, data = null }) {
  const lines = [event && `event: ${event}`, id && `id: ${id}`, data && `data: ${JSON.stringify(data)}`]
  return lines.filter(Boolean).join('\n') + '\n\n'
}

// hurry makes timers fire at once for as long as a test runs, and returns the requested
// delays.
export function hurry(t) {
  const { setTimeout, clearTimeout } = globalThis
  const delays = []
  globalThis.setTimeout = (done, ms) => {
    delays.push(ms)
    return setImmediate(done)
  }
  globalThis.clearTimeout = clearImmediate
  t.after(() => Object.assign(globalThis, { setTimeout, clearTimeout }))
  return delays
}

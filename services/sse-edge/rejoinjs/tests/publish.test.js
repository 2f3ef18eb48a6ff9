import assert from 'node:assert/strict'
import { test } from 'node:test'
import { publish } from '../rejoin.js'
import { hanging, hurry, id, json, problem, redirected, serve, unreachable } from './server.js'

const stored = { id: id(1), duplicate: false }
const message = { jsonrpc: '2.0', method: 'count' }

function send(server, options = {}) {
  return publish('x', 's', message, { base: 'http://rejoin.test', fetch: server.fetch, ...options })
}

test('a message is sent once, with a key of its own', async () => {
  const server = serve(json(stored, 201))
  assert.deepEqual(await send(server), stored)
  await send(server)
  const [first, second] = server.requests
  assert.equal(first.method, 'POST')
  assert.equal(first.url.href, 'http://rejoin.test/v1/sessions/x/streams/s/events')
  assert.equal(first.headers['content-type'], 'application/json')
  assert.deepEqual(JSON.parse(first.body), message)
  assert.match(first.headers['idempotency-key'], /^[0-9a-f]{32}$/)
  assert.notEqual(first.headers['idempotency-key'], second.headers['idempotency-key'])
  assert.equal(first.headers['event-type'], undefined)
})

test('options are sent unchanged', async () => {
  const server = serve(json(stored, 201))
  const text = '{"jsonrpc":"2.0","id":12345678901234567890,"result":{}}'
  await publish('x', 's', text, { base: 'http://rejoin.test', fetch: server.fetch, key: 'k', type: 'progress', token: () => 'secret', headers: { 'X-Tenant': 'a' } })
  const [{ headers, body }] = server.requests
  assert.equal(body, text)
  assert.deepEqual([headers['idempotency-key'], headers['event-type'], headers.authorization, headers['x-tenant']], ['k', 'progress', 'Bearer secret', 'a'])
})

test('temporary failures are retried under the same key', async (t) => {
  const answers = { 'no answer': unreachable, 'an answer that takes too long': hanging }
  for (const status of [302, 408, 429, 500, 502, 503, 504]) answers[status] = problem(status, 'passing')
  for (const [name, answer] of Object.entries(answers)) {
    await t.test(name, async (t) => {
      hurry(t)
      const server = serve(answer, answer, json(stored, 201))
      assert.deepEqual(await send(server), stored)
      assert.equal(server.requests.length, 3)
      assert.equal(new Set(server.requests.map((request) => request.headers['idempotency-key'])).size, 1)
    })
  }
})

test('it is tried five times, while the server remembers a key', async (t) => {
  const delays = hurry(t)
  const server = serve(problem(503, 'unavailable', { 'Retry-After': '3600' }))
  await assert.rejects(send(server), { name: 'RejoinError', status: 503, code: 'unavailable', unknown: false })
  assert.equal(server.requests.length, 5)
  assert.ok(delays.reduce((sum, ms) => sum + ms) < 120_000)
  await assert.rejects(send(server, { attempts: 1 }), { status: 503 })
  assert.equal(server.requests.length, 6)
})

test('a message that may be stored is not sent again once the server may have forgotten the key', async (t) => {
  hurry(t)
  let now = 1e12
  t.mock.method(Date, 'now', () => now)
  const asleep = (answer, ms) => (signal) => {
    now += ms // timers stand still meanwhile
    return answer(signal)
  }
  for (const ms of [600_000, -600_000]) { // the clock may be set back
    const late = serve(asleep(unreachable, ms), json(stored, 201))
    await assert.rejects(send(late), { code: 'no_answer', unknown: true })
    assert.equal(late.requests.length, 1)
  }
  let passed = 0
  const clock = t.mock.method(performance, 'now', () => passed)
  const setBack = serve((signal) => { passed += 100_000; return asleep(unreachable, 40_000)(signal) }, json(stored, 201)) // by 60 s
  await assert.rejects(send(setBack), { code: 'no_answer', unknown: true })
  assert.equal(setBack.requests.length, 1)
  clock.mock.restore()
  const slowToken = serve(unreachable, json(stored, 201))
  const token = async () => { now += 100_000; return 'secret' }
  await assert.rejects(send(slowToken, { token }), { code: 'no_answer', unknown: true })
  assert.equal(slowToken.requests.length, 1)

  const early = serve(asleep(unreachable, 99_999), json(stored, 201))
  assert.deepEqual(await send(early), stored)
  const notStored = serve(asleep(problem(503, 'unavailable'), 600_000), json(stored, 201))
  assert.deepEqual(await send(notStored), stored)
})

test('a large message gets time for a slow connection, until the server forgets its key', async (t) => {
  let passed = 0
  t.mock.method(performance, 'now', () => passed)
  const delays = hurry(t)
  const large = 'x'.repeat(1 << 20)
  const server = serve((signal) => { passed += 99_000; return hanging(signal) }, json(stored, 201))
  await publish('x', 's', [large], { base: 'http://rejoin.test', fetch: server.fetch })
  const [first, , again] = delays
  assert.ok(first > 40_000 && again > 15_000 && again < 20_000, delays.join())
})

test('a refusal is reported at once', async (t) => {
  for (const status of [400, 401, 403, 404, 409, 413]) {
    await t.test(String(status), async () => {
      const server = serve(problem(status, 'no'))
      await assert.rejects(send(server), { status, code: 'no', unknown: false })
      assert.equal(server.requests.length, 1)
    })
  }
})

test('an error reports that the message may have been stored', async (t) => {
  hurry(t)
  const cases = { 'no answer': unreachable, 'an answer with this code': problem(503, 'publish_unknown'), "a proxy's": () => new Response('<html>', { status: 504 }) }
  cases['a 503 after a redirect'] = () => redirected(problem(503, 'unavailable')())
  for (const [status, code] of [[408, 'request_timeout'], [500, 'internal'], [502, 'bad_gateway'], [503, 'other']]) cases[status] = problem(status, code)
  for (const [name, answer] of Object.entries(cases)) {
    await assert.rejects(send(serve(answer)), { unknown: true }, name)
    await assert.rejects(send(serve(answer, problem(409, 'stream_closed'))), { status: 409, unknown: true }, name)
  }
  for (const [status, code] of [[503, 'unavailable'], [503, 'storage_full'], [429, 'rate_limited'], [425, 'too_early']]) {
    await assert.rejects(send(serve(problem(status, code))), { status, unknown: false }, code)
  }
  await assert.rejects(send(serve(() => redirected(problem(400, 'no')()))), { status: 400, unknown: true })
})

test('a refused token is replaced once', async () => {
  const server = serve(problem(401, 'unauthorized'), json(stored, 201))
  assert.deepEqual(await send(server, { token: async (refused) => (refused ? 'new' : 'old') }), stored)
  assert.deepEqual(server.requests.map((request) => request.headers.authorization), ['Bearer old', 'Bearer new'])
  const never = serve(problem(401, 'unauthorized'))
  await assert.rejects(send(never, { token: () => 'old' }), { status: 401 })
  assert.equal(never.requests.length, 2)
})

test('it stops with its signal', async (t) => {
  for (const [name, answer] of Object.entries({ 'while it waits for the answer': hanging, 'between two attempts': problem(503, 'unavailable') })) {
    await t.test(name, async () => {
      const abort = new AbortController()
      const sending = send(serve(answer), { signal: abort.signal })
      setImmediate(() => abort.abort())
      await assert.rejects(sending, { name: 'AbortError' })
    })
  }
  await assert.rejects(send(serve(json(stored)), { signal: AbortSignal.abort() }), { name: 'AbortError' })
})

test('it needs valid names', async () => {
  await assert.rejects(publish('x', undefined, message, { base: 'http://rejoin.test' }), TypeError)
  await assert.rejects(publish('', 's', message, { base: 'http://rejoin.test' }), TypeError)
  await assert.rejects(publish('x', '..', message, { base: 'http://rejoin.test' }), TypeError)
  await assert.rejects(publish('x', 's', message), TypeError)
})

test('without a token for the second attempt the outcome is unknown', async (t) => {
  hurry(t)
  let asked = 0
  const token = async () => { if (++asked > 1) throw new TypeError('Failed to fetch'); return 'a' }
  await assert.rejects(send(serve(unreachable), { token }), { name: 'RejoinError', unknown: true })
  assert.equal(asked, 2)
})

test('a token that never comes ends with the signal, and after the time of an attempt', async (t) => {
  const server = serve(json(stored, 201))
  const token = () => new Promise(() => {})
  const abort = new AbortController()
  setTimeout(() => abort.abort(new Error('enough')), 10)
  await assert.rejects(send(server, { token, signal: abort.signal }), { message: 'enough' })
  hurry(t)
  await assert.rejects(send(server, { token }), { name: 'RejoinError', unknown: false, message: 'the token function timed out' })
  assert.equal(server.requests.length, 0)
})

test('only 201 confirms a stored message', async (t) => {
  hurry(t)
  await assert.rejects(send(serve(json({ login: 'required' }))), { name: 'RejoinError', status: 200, code: 'http_200', unknown: true })
  const server = serve(json({ login: 'required' }), json(stored, 201))
  assert.deepEqual(await send(server), stored)
})

test('a 201 without an event ID does not confirm a stored message', async (t) => {
  hurry(t)
  for (const [name, answer] of Object.entries({ 'no value': json(null, 201), 'no ID': json({ created: true }, 201) })) {
    await assert.rejects(send(serve(answer)), { name: 'RejoinError', unknown: true }, name)
    assert.deepEqual(await send(serve(answer, json(stored, 201))), stored)
  }
})

test('an endless 201 is read up to the length of an answer', async (t) => {
  hurry(t)
  let chunks = 0
  const endless = () => new ReadableStream({ pull: (body) => { chunks++ < 1000 ? body.enqueue(new Uint8Array(1024).fill(32)) : body.close() } })
  await assert.rejects(send(serve(() => new Response(endless(), { status: 201 })), { attempts: 1 }), { name: 'RejoinError', unknown: true })
  assert.ok(chunks < 100, `${chunks} chunks were read`)
})

test('a redirection to the event stream is not read, and the error names it', async (t) => {
  hurry(t)
  let cancelled = 0
  const server = serve(() => {
    return redirected(new Response(new ReadableStream({ cancel: () => { cancelled++ } }), { headers: { 'Content-Type': 'text/event-stream' } }))
  })
  await assert.rejects(send(server), { name: 'RejoinError', status: 200, code: 'http_200', unknown: true, message: /redirected to https:\/\/rejoin\.test\/v1\/x/ })
  assert.equal(cancelled, 5)
})

test('any value may be thrown', async (t) => {
  hurry(t)
  await assert.rejects(send(serve(json(stored, 201)), { token: () => Promise.reject() }), { name: 'RejoinError', unknown: false })
  await assert.rejects(send(serve(() => Promise.reject('down'))), { name: 'RejoinError', unknown: true, message: 'no answer: down' })
  const refused = () => { throw new TypeError('fetch failed', { cause: new Error('connect ECONNREFUSED') }) } // as Node's fetch
  await assert.rejects(send(serve(refused)), { name: 'RejoinError', message: 'no answer: fetch failed: connect ECONNREFUSED' })
  const abort = new AbortController()
  const sending = send(serve(hanging), { signal: abort.signal })
  setImmediate(() => abort.abort(null))
  assert.equal(await sending.catch((reason) => reason), null)
})

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backoff, sequenceOf, subscribe } from '../rejoin.js'
import { block, close, connect, cursor, ended, gap, hanging, hurry, id, live, message, problem, redirected, serve, streamed, unreachable } from './server.js'

const target = { session: 'x', stream: 's', base: 'http://rejoin.test' }

// follow subscribes and records the events, until the subscription ends.
async function follow(server, options = {}) {
  const told = { events: [], gaps: [], states: [], ends: [], repeats: [], saved: [] }
  const store = { load: () => null, save: (place) => { told.saved.push(place) } }
  const subscription = subscribe(options.target ?? target, {
    fetch: server.fetch,
    storage: store,
    onEvent: (event) => { told.events.push(event.message?.n ?? event.message) },
    onGap: (gap) => { told.gaps.push(gap.reason) },
    onState: (state) => { told.states.push(state) },
    onClose: (end) => { told.ends.push(end) },
    onRepeat: (event) => { told.repeats.push(event.message.n) },
    ...options,
  })
  told.end = await subscription.closed
  told.cursor = subscription.cursor
  assert.deepEqual(told.ends, options.onClose ? [] : [told.end], 'onClose is called once')
  assert.equal(subscription.state, 'closed')
  return told
}

const after = (request) => request.headers['last-event-id']

test('after a connection ended, the next one resumes after the last event', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(0) + message(1) + message(2)), streamed(connect(2) + message(3)), ended)
  const { events, end, states } = await follow(server)
  assert.deepEqual(events, [1, 2, 3])
  assert.deepEqual(server.requests.map(after), [undefined, id(2), id(3)])
  assert.equal(end.reason, 'closed')
  assert.deepEqual(states, ['connecting', 'live', 'waiting', 'connecting', 'live', 'waiting', 'connecting'])
})

test('a connection that ends before it begins has a reason', async (t) => {
  hurry(t)
  const errors = []
  const server = serve(streamed('retry: 10\n\n'), streamed(connect(0)), ended)
  await follow(server, { onState: (state, { error }) => { if (state === 'waiting') errors.push(error?.message) } })
  assert.deepEqual(errors, ['the service is unavailable', undefined])
})

test('every block moves the cursor: connect, cursor, and one without data', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(3)), streamed(connect(3) + cursor(5)), streamed(connect(5) + block({ id: id(8) })), ended)
  const { saved } = await follow(server)
  assert.deepEqual(server.requests.map(after), [undefined, id(3), id(5), id(8)])
  assert.deepEqual(saved, [id(3), id(5), id(8)])
})

test('a block that was cut off does not count', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(0) + message(1) + message(2).slice(0, -1)), streamed(connect(1) + message(2)), ended)
  const { events } = await follow(server)
  assert.deepEqual(events, [1, 2])
  assert.equal(after(server.requests[1]), id(1))
})

test('a block without JSON, for example from a proxy, does not count', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(0) + message(1) + message(2).replace('}', '<p>Error') + message(3)), streamed(connect(1) + message(2)), ended)
  const { events } = await follow(server)
  assert.deepEqual(events, [1, 2])
  assert.equal(after(server.requests[1]), id(1))
})

test('an event at or before the cursor is not delivered again', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(0) + message(1) + message(2) + message(2) + message(1) + message(3)), streamed(connect(3) + message(3) + message(4)), ended)
  const { events, repeats, cursor } = await follow(server)
  assert.deepEqual(events, [1, 2, 3, 4])
  assert.deepEqual(repeats, [2, 1, 3])
  assert.equal(cursor, id(4))
})

test('only a gap moves the cursor back, and later events are delivered', async (t) => {
  hurry(t)
  const server = serve(
    streamed(connect(0) + message(7, 'a') + message(9, 'b') + cursor(5)),
    streamed(connect(null) + gap(6, 'rolled_back') + message(7, 'c') + message(8, 'd')),
    ended,
  )
  const { events, gaps, saved } = await follow(server)
  assert.deepEqual(events, ['a', 'b', 'c', 'd'])
  assert.deepEqual(gaps, ['rolled_back'])
  assert.equal(after(server.requests[1]), id(9))
  assert.deepEqual(saved, [id(0), id(7), id(9), id(6), id(7), id(8)])
})

test('a gap without an ID comes again on the next connection', async (t) => {
  hurry(t)
  const first = block({ event: 'gap', data: { reason: 'trimmed', certain: true } })
  const server = serve(streamed(connect(4)), streamed(connect(null) + first), ended)
  const { gaps } = await follow(server)
  assert.deepEqual(gaps, ['trimmed'])
  assert.equal(after(server.requests[2]), id(4))
})

test('a gap without a handler is shown on the console', async (t) => {
  hurry(t)
  const warn = t.mock.method(console, 'warn', () => {})
  await follow(serve(streamed(connect(null) + gap(6, 'expired')), ended), { onGap: undefined })
  assert.equal(warn.mock.calls.length, 1)
  assert.match(warn.mock.calls[0].arguments[0], /missing/)
})

test('the cursor is saved after the event is handled, not before', async () => {
  const order = []
  const server = serve(streamed(connect(0) + message(1) + message(2) + close(3)))
  await follow(server, {
    storage: { load: () => null, save: (place) => { order.push(`saved ${sequenceOf(place)}`) } },
    async onEvent({ message }) {
      order.push(`got ${message.n}`)
      await new Promise(setImmediate)
      order.push(`done with ${message.n}`)
    },
  })
  assert.deepEqual(order, ['saved 0', 'got 1', 'done with 1', 'saved 1', 'got 2', 'done with 2', 'saved 2', 'saved 3'])
})

test('a callback that throws or rejects ends the subscription before its event', async (t) => {
  const mistake = new Error('no')
  const stream = connect(0) + message(1) + message(1) + gap(2, 'trimmed') + block({ event: 'expiring', id: id(3), data: {} })
  const cursors = { onState: '', onConnect: '', onEvent: id(0), onRepeat: id(1), onGap: id(1), onExpiring: id(2) }
  for (const fail of [() => { throw mistake }, async () => { throw mistake }]) {
    for (const [callback, before] of Object.entries(cursors)) {
      await t.test(callback, async (t) => {
        hurry(t)
        const { end, cursor } = await follow(serve(streamed(stream), ended), { [callback]: fail })
        assert.deepEqual([end, cursor], [{ reason: 'failed', error: mistake }, before])
      })
    }
  }
})

test('a cursor that cannot be saved ends the subscription after its event', async () => {
  const full = new Error('full')
  const save = async (place) => { if (place === id(1)) throw full }
  const { end, events, cursor } = await follow(serve(live(connect(0) + message(1) + message(2))), { storage: { load: async () => null, save } })
  assert.deepEqual([end, events, cursor], [{ reason: 'failed', error: full }, [1], id(1)])
})

test('the start', async (t) => {
  const load = (place) => ({ load: async () => place, save: () => {} })
  const cases = {
    'at the saved cursor': [{ storage: load(id(5)) }, id(5), ''],
    'at the given cursor, rather than at the saved one': [{ storage: load(id(5)), cursor: id(3) }, id(3), ''],
    'with the retained events': [{}, undefined, ''],
    'with new events': [{ from: 'now' }, undefined, '?from=now'],
    'with the newest events': [{ last: 20 }, undefined, '?last=20'],
    'with the newest events, rather than with new ones': [{ last: 20, from: 'now' }, undefined, '?last=20'],
    'at a cursor, rather than with the newest events': [{ last: 20, cursor: id(3) }, id(3), ''],
    'at a cursor, rather than with new events': [{ from: 'now', cursor: id(3) }, id(3), ''],
    'at the beginning, although something was saved': [{ storage: load(id(5)), cursor: '' }, undefined, ''],
    'at a text that is no ID and fits in no header': [{ cursor: 'ü\n ' }, undefined, '?after=%C3%BC%0A+'],
  }
  for (const [name, [options, header, search]] of Object.entries(cases)) {
    await t.test(name, async () => {
      const server = serve(ended)
      await follow(server, options)
      assert.equal(after(server.requests[0]), header)
      assert.equal(server.requests[0].url.search, search)
    })
  }
})

test('the requested address', async (t) => {
  const cases = {
    'a stream': [target, 'http://rejoin.test/v1/sessions/x/streams/s/events'],
    'a session': [{ session: 'x', base: 'http://rejoin.test/' }, 'http://rejoin.test/v1/sessions/x/events'],
    'names of any characters, below a path': [{ session: 'a/b?', stream: '#%', base: 'http://rejoin.test/deep' }, 'http://rejoin.test/deep/v1/sessions/a%2Fb%3F/streams/%23%25/events'],
    'an address': [{ url: 'http://rejoin.test/proxied?envelope=true' }, 'http://rejoin.test/proxied?envelope=true'],
  }
  for (const [name, [target, want]] of Object.entries(cases)) {
    await t.test(name, async () => {
      const server = serve(ended)
      await follow(server, { target })
      assert.equal(server.requests[0].url.href, want)
      assert.equal(server.requests[0].headers.accept, 'text/event-stream')
    })
  }
  const { base } = target
  const bad = [
    {}, { session: '' }, { session: 'x', stream: 's' }, { url: '/v1/sessions/x/events' },
    { session: '..', base }, { session: 'x', stream: '..', base }, { session: 'x', stream: '', base }, { session: 'x', stream: null, base },
    { sessions: 'abc', base }, { sessions: ['a'], stream: null, base },
    { url: 'localhost:8080/v1/sessions/x/events' }, { session: 'x', base: 'ftp://rejoin.test' },
  ]
  for (const target of bad) assert.throws(() => subscribe(target), TypeError, JSON.stringify(target))
  for (const options of [{ from: '-5m' }, { types: 'progress' }]) assert.throws(() => subscribe(target, options), TypeError, JSON.stringify(options))
  assert.throws(() => subscribe(target, { headers: { 'bad name': '' } }), TypeError)
  assert.throws(() => subscribe(target, { storage: 'a key, without localStorage' }), TypeError)
  const had = Object.getOwnPropertyDescriptor(globalThis, 'localStorage')
  Object.defineProperty(globalThis, 'localStorage', { value: {}, configurable: true }) // as in Node 25 without a file for it
  t.after(() => (had ? Object.defineProperty(globalThis, 'localStorage', had) : delete globalThis.localStorage))
  assert.throws(() => subscribe(target, { storage: 'a key, without localStorage' }), TypeError)
})

test('a final refusal is reported once and ends it', async (t) => {
  for (const status of [400, 401, 403, 404, 405, 406, 410, 431]) {
    await t.test(String(status), async () => {
      const server = serve(problem(status, 'some_code'))
      const { end, events } = await follow(server)
      assert.equal(end.reason, 'refused')
      assert.equal(end.error.status, status)
      assert.equal(end.error.code, 'some_code')
      assert.match(end.error.message, /It did not work/)
      assert.equal(server.requests.length, 1)
      assert.deepEqual(events, [])
    })
  }
})

test('an endless refusal is read up to the length of a problem document', async () => {
  let chunks = 0
  const endless = new ReadableStream({ pull: (body) => { chunks++ < 1000 ? body.enqueue(new Uint8Array(1024).fill(32)) : body.close() } })
  const { end } = await follow(serve(() => new Response(endless, { status: 403 })))
  assert.equal(end.error.status, 403)
  assert.ok(chunks < 100, `${chunks} chunks were read`)
})

test('a temporary failure does not end it', async (t) => {
  const answers = {
    'no answer': unreachable,
    'an answer that is no event stream': () => new Response('<p>Log in to this network</p>', { headers: { 'Content-Type': 'text/html' } }),
    'an event stream that has only a retry time': streamed('retry: 10\n\n'),
    ...Object.fromEntries([408, 425, 429, 500, 502, 503, 504].map((status) => [status, problem(status, 'passing')])),
  }
  for (const [name, answer] of Object.entries(answers)) {
    await t.test(name, async (t) => {
      hurry(t)
      const server = serve(streamed(connect(0) + message(1)), answer, answer, streamed(connect(1) + message(2)), ended)
      const { events, end } = await follow(server)
      assert.deepEqual(events, [1, 2])
      assert.equal(end.reason, 'closed')
      assert.deepEqual(server.requests.map(after), [undefined, id(1), id(1), id(1), id(2)])
    })
  }
})

test('reconnections wait longer with each failure, up to the limit', async (t) => {
  t.mock.method(Math, 'random', () => 0)
  const delays = hurry(t)
  const server = serve(
    unreachable,
    streamed('retry: 1000\n' + connect(0)),
    ...Array(6).fill(unreachable),
    problem(503, 'unavailable', { 'Retry-After': '7' }),
    streamed(connect(0)),
    problem(503, 'unavailable', { 'Retry-After': '7' }),
    ended,
  )
  await follow(server, { maxDelay: 15_000 })
  assert.deepEqual(delays, [3000, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000, 10_000, 1000, 10_000])
})

test('reconnections pause although the server asks for no pause', async (t) => {
  t.mock.method(Math, 'random', () => 0)
  const delays = hurry(t)
  const server = serve(streamed('retry: 0\n' + connect(0)), unreachable, ended)
  await follow(server)
  assert.deepEqual(delays, [3000, 6000])
})

test('a date in Retry-After counts', async (t) => {
  t.mock.method(Math, 'random', () => 0)
  t.mock.method(Date, 'now', () => Date.UTC(2026, 0, 31, 12))
  const delays = hurry(t)
  const busy = (value) => problem(503, 'unavailable', { 'Retry-After': value })
  const server = serve(...['Sat, 31 Jan 2026 12:01:00 GMT', 'Sat, 31 Jan 2026 11:00:00 GMT', 'soon', '-5'].map(busy), ended)
  await follow(server)
  assert.deepEqual(delays, [60_000, 6000, 12_000, 20_000])
})

test('a server sets the pause between 100 ms and an hour', async (t) => {
  t.mock.method(Math, 'random', () => 0)
  const delays = hurry(t)
  const server = serve(streamed('retry: 1\n' + connect(0)), problem(503, 'unavailable', { 'Retry-After': '1e99' }), streamed('retry: 99999999999999999999\n\n'), ended)
  await follow(server)
  assert.deepEqual(delays, [100, 3_600_000, 3_600_000])
})

test('a pause fits into a timer', async (t) => {
  const delays = hurry(t)
  await follow(serve(...Array(40).fill(unreachable), ended), { maxDelay: Infinity })
  assert.equal(delays.at(-1), 2 ** 31 - 1)
})

test('reconnections are spread', () => {
  assert.equal(backoff(1000, 0, 30_000, () => 0), 1000)
  assert.equal(backoff(1000, 0, 30_000, () => 1), 1500)
  assert.equal(backoff(1000, 50, 30_000, () => 0), 20_000)
  assert.equal(backoff(1000, 5000, 30_000, () => 1), 30_000)
  assert.equal(backoff(60_000, 3, 30_000, () => 0), 60_000) // the server's wish
})

test('a silent connection is replaced', async (t) => {
  const states = []
  const server = serve(live(connect(0) + message(1)), hanging, ended)
  const waiting = hurry(t)
  const { end, events } = await follow(server, { silence: 20, onState: (state, detail) => { states.push([state, detail.error?.message]) } })
  assert.equal(end.reason, 'closed')
  assert.deepEqual(events, [1])
  assert.equal(waiting.length, 2)
  assert.deepEqual(states.filter(([state]) => state === 'waiting'), Array(2).fill(['waiting', 'no data for 0.02 s']))
})

test('a silent connection is replaced, also when the clock is set back', async (t) => {
  hurry(t)
  const { now } = Date
  let ahead = 0
  t.mock.method(Date, 'now', () => now() + ahead)
  const setBack = () => setImmediate(() => { ahead -= 3_600_000 }) // while it waits for the server
  const server = serve(live(connect(0) + message(1)), ended)
  const { end } = await follow(server, { silence: 20, onEvent: setBack })
  assert.equal(end.reason, 'closed')
})

test('an unlimited silence needs no timer that fires all the time', async (t) => {
  const { setInterval } = globalThis
  const intervals = []
  globalThis.setInterval = (done, ms) => {
    intervals.push(ms)
    return setInterval(done, 1e6)
  }
  t.after(() => { globalThis.setInterval = setInterval })
  await follow(serve(ended), { silence: Infinity })
  assert.deepEqual(intervals, [2 ** 31 - 1])
})

test('a slow onEvent is no silence', async () => {
  const server = serve(live(connect(0) + message(1), message(2), close(3)), ended)
  const slow = () => new Promise((resolve) => setTimeout(resolve, 60))
  const { end, cursor } = await follow(server, { silence: 20, onEvent: slow })
  assert.equal(end.reason, 'closed')
  assert.equal(cursor, id(3))
  assert.equal(server.requests.length, 1)
})

test('tokens', async (t) => {
  const sent = (server) => server.requests.map((request) => request.headers.authorization)
  const unauthorized = problem(401, 'unauthorized')

  await t.test('a fixed one is sent, and refused for good', async () => {
    const server = serve(unauthorized)
    const { end } = await follow(server, { token: 'a' })
    assert.equal(end.error.status, 401)
    assert.deepEqual(sent(server), ['Bearer a'])
  })
  await t.test('one that a redirect removed is refused with the address', async () => {
    const { end } = await follow(serve(() => redirected(unauthorized())), { token: 'a' })
    assert.match(end.error.message, /401: It did not work\. .*redirected to https:\/\/rejoin\.test\/v1\/x/)
  })
  await t.test('a new one is requested before each connection', async (t) => {
    hurry(t)
    let n = 0
    const server = serve(streamed(connect(0)), streamed(connect(0)), ended)
    await follow(server, { token: async () => `token ${++n}` })
    assert.deepEqual(sent(server), ['Bearer token 1', 'Bearer token 2', 'Bearer token 3'])
  })
  await t.test('a refused one is replaced at once, and the cursor kept', async (t) => {
    hurry(t)
    let current = 'old'
    const server = serve(streamed(connect(0) + message(1)), unauthorized, streamed(connect(1) + message(2)), ended)
    const { events, states } = await follow(server, { token: (refused) => (refused ? (current = 'new') : current) })
    assert.deepEqual(events, [1, 2])
    assert.deepEqual(sent(server), ['Bearer old', 'Bearer old', 'Bearer new', 'Bearer new'])
    assert.equal(after(server.requests[2]), id(1))
    assert.equal(states.filter((state) => state === 'waiting').length, 2)
  })
  await t.test('an unreplaced one ends it', async () => {
    const server = serve(unauthorized)
    const { end } = await follow(server, { token: () => 'the same' })
    assert.equal(end.reason, 'refused')
    assert.equal(server.requests.length, 1)
  })
  await t.test('two refused ones in a row end it', async () => {
    let n = 0
    const server = serve(unauthorized)
    const { end } = await follow(server, { token: () => `token ${++n}` })
    assert.equal(end.reason, 'refused')
    assert.deepEqual(sent(server), ['Bearer token 1', 'Bearer token 2'])
  })
  await t.test('one that never arrives is requested again', async (t) => {
    hurry(t)
    const never = new Promise(() => {})
    const asked = []
    const server = serve(unauthorized, ended)
    const { end } = await follow(server, { silence: 20, token: (refused) => { asked.push(refused); return asked.length % 2 ? never : `token ${asked.length}` } })
    assert.equal(end.reason, 'closed')
    assert.deepEqual(asked, [false, false, true, false])
    assert.deepEqual(sent(server), ['Bearer token 2', 'Bearer token 4'])
  })
  await t.test('a failed one is requested again', async (t) => {
    hurry(t)
    let n = 0
    const server = serve(ended)
    const { end } = await follow(server, { token: async () => { if (++n < 3) throw new Error('offline'); return 'a' } })
    assert.equal(end.reason, 'closed')
    assert.equal(n, 3)
  })
  await t.test('a login with a cookie is renewed once', async () => {
    let n = 0
    const server = serve(unauthorized, streamed(connect(0) + close(1)))
    const { end } = await follow(server, { renew: async () => { n++ } })
    assert.equal(end.reason, 'closed')
    assert.equal(n, 1)
    const never = await follow(serve(unauthorized), { renew: () => false })
    assert.equal(never.end.reason, 'refused')
  })
  await t.test('two refusals with a failure between them are not in a row', async (t) => {
    hurry(t)
    let n = 0
    const portal = () => new Response('<p>Log in to this network</p>', { headers: { 'Content-Type': 'text/html' } })
    const server = serve(unauthorized, problem(503, 'unavailable'), unauthorized, portal, unauthorized, ended)
    const { end } = await follow(server, { renew: async () => { n++ } })
    assert.equal(end.reason, 'closed')
    assert.equal(n, 3)
  })
  await t.test('a failed renewal of a login is tried again', async (t) => {
    hurry(t)
    let n = 0
    const server = serve(unauthorized, unauthorized, ended)
    const { end } = await follow(server, { renew: async () => { if (++n < 2) throw new Error('offline') } })
    assert.equal(end.reason, 'closed')
    assert.equal(n, 2)
  })
})

test('an endless block ends it', async () => {
  const chunks = Array(34).fill('x'.repeat(1 << 20))
  const { end, events } = await follow(serve(live(connect(0) + message(1), ...chunks)))
  assert.equal(end.reason, 'failed')
  assert.match(end.error.message, /longer/)
  assert.deepEqual(events, [1])
})

test('headers are sent with every connection', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(0)), ended)
  await follow(server, { headers: { 'X-Tenant': 'a' } })
  assert.deepEqual(server.requests.map((request) => request.headers['x-tenant']), ['a', 'a'])
})

test('events of every type are delivered, or those of listed types', async (t) => {
  const stream = connect(0) + message(1) + block({ event: 'progress', id: id(2), data: { n: 2 } }) + block({ event: 'log', id: id(3), data: { n: 3 } }) + close(4)
  const types = async (types) => {
    const got = []
    const { cursor } = await follow(serve(streamed(stream)), { types, onEvent: (event) => { got.push(event.type) } })
    assert.equal(cursor, id(4))
    return got.join(' ')
  }
  assert.equal(await types(undefined), 'message progress log')
  assert.equal(await types('*'), 'message progress log')
  assert.equal(await types(['log']), 'message log')
  assert.equal(await types([]), 'message')
})

test('the type of an event in an envelope is the one in it', async () => {
  const enveloped = (n, type) => block({ id: `*_abcdefg_${n}`, data: { id: id(n), stream: 's', type, time: '', message: { n } } })
  const flow = connect(0, { stream: null }) + enveloped(1, 'message') + enveloped(2, 'progress') + enveloped(3, 'log')
  for (const [types, want] of [[undefined, [1, 2, 3]], [['log'], [1, 3]]]) {
    const { events } = await follow(serve(streamed(flow + close(4))), { types })
    assert.deepEqual(events, want)
  }
})

test('an event has its fields', async (t) => {
  const envelope = { id: 's_hijklmn_4', stream: 's', type: 'progress', time: '2026-01-02T03:04:05Z', message: { n: 1 } }
  const flow = connect(3, { stream: null }) + block({ id: '*_abcdefg_4', data: envelope })
  const cases = {
    'of a stream': [connect(3) + block({ event: 'progress', id: id(4), data: { n: 1 } }), '', { id: id(4), type: 'progress', stream: 's', time: null, message: { n: 1 }, data: '{"n":1}' }],
    'of a session': [flow, '', { id: '*_abcdefg_4', type: 'progress', stream: 's', time: envelope.time, message: { n: 1 }, data: JSON.stringify(envelope) }],
    'of a stream, in an envelope': [connect(3) + block({ event: 'progress', id: id(4), data: envelope }), '?envelope=true', { id: id(4), type: 'progress', stream: 's', time: envelope.time, message: { n: 1 }, data: JSON.stringify(envelope) }],
    'of a session, without an envelope': [connect(3, { stream: null }) + block({ id: '*_abcdefg_4', data: { n: 1 } }), '?envelope=false', { id: '*_abcdefg_4', type: 'message', stream: null, time: null, message: { n: 1 }, data: '{"n":1}' }],
  }
  for (const [name, [stream, search, want]] of Object.entries(cases)) {
    await t.test(name, async () => {
      const got = []
      await follow(serve(streamed(stream + close(5))), { target: { url: 'http://rejoin.test/events' + search }, onEvent: (event) => { got.push(event) } })
      assert.deepEqual(got, [want])
    })
  }
})

test('connect and expiring events are reported', async () => {
  const told = []
  const stream = connect(3, { oldest: id(1) }) + block({ event: 'expiring', id: id(3), data: { in: 60 } }) + close(4)
  await follow(serve(streamed(stream)), { onConnect: (place) => { told.push(place) }, onExpiring: (data) => { told.push(data) } })
  assert.deepEqual(told, [{ session: 'x', stream: 's', exists: true, resumed: false, oldest: id(1), retainedFor: 3600, id: id(3) }, { in: 60 }])
})

test('close ends it at once, in any state', async (t) => {
  const at = {
    'before it began': [hanging, (abort) => abort.abort()],
    'while it connects': [hanging, (abort) => setImmediate(() => abort.abort())],
    'while no data comes': [live(connect(0)), (abort) => setImmediate(() => abort.abort())],
    'while it waits': [unreachable, (abort) => setImmediate(() => abort.abort())],
  }
  for (const [name, [answer, act]] of Object.entries(at)) {
    await t.test(name, async () => {
      const abort = new AbortController()
      const following = follow(serve(answer), { signal: abort.signal })
      act(abort)
      const { end, events } = await following
      assert.deepEqual(end, { reason: 'stopped' })
      assert.deepEqual(events, [])
    })
  }
  await t.test('while an event is handled, which counts', async () => {
    const abort = new AbortController()
    const { end, cursor } = await follow(serve(live(connect(0) + message(1) + message(2))), {
      signal: abort.signal,
      onEvent: async () => {
        abort.abort()
        await new Promise(setImmediate)
      },
    })
    assert.deepEqual(end, { reason: 'stopped' })
    assert.equal(cursor, id(1))
  })
  await t.test('in onState of connecting', async () => {
    const abort = new AbortController()
    const server = serve(hanging)
    const { end } = await follow(server, { signal: abort.signal, onState: () => abort.abort() })
    assert.deepEqual(end, { reason: 'stopped' })
    assert.equal(server.requests.length, 0)
  })
  await t.test('in onState of live', async () => {
    const abort = new AbortController()
    let connected = 0
    const { end } = await follow(serve(live(connect(0))), { signal: abort.signal, onState: (state) => { if (state === 'live') abort.abort() }, onConnect: () => { connected++ } })
    assert.deepEqual(end, { reason: 'stopped' })
    assert.equal(connected, 0)
  })
  await t.test('while it reads a refusal', async () => {
    const abort = new AbortController()
    let renewed = 0
    const refusal = () => {
      setImmediate(() => abort.abort())
      return new Response(new ReadableStream({ pull: (body) => new Promise((done) => abort.signal.addEventListener('abort', () => { body.close(); done() })) }), { status: 401 })
    }
    const { end } = await follow(serve(refusal), { signal: abort.signal, renew: () => { renewed++ } })
    assert.deepEqual(end, { reason: 'stopped' })
    assert.equal(renewed, 0)
  })
  await t.test('while it waits for a token', async () => {
    const abort = new AbortController()
    const server = serve(ended)
    const { end } = await follow(server, { signal: abort.signal, token: () => { abort.abort(); return new Promise(() => {}) } })
    assert.deepEqual(end, { reason: 'stopped' })
    assert.equal(server.requests.length, 0)
  })
  await t.test('a signal that was aborted before', async () => {
    const server = serve(hanging)
    const { end } = await follow(server, { signal: AbortSignal.abort() })
    assert.deepEqual(end, { reason: 'stopped' })
    assert.equal(server.requests.length, 0)
  })
})

test('an unwanted end without a handler is shown on the console', async (t) => {
  const error = t.mock.method(console, 'error', () => {})
  for (const answer of [problem(403, 'forbidden'), ended]) {
    await subscribe(target, { fetch: serve(answer).fetch, onEvent: () => {} }).closed
  }
  assert.equal(error.mock.calls.length, 1)
})

test('an onClose that throws is shown on the console', async (t) => {
  const error = t.mock.method(console, 'error', () => {})
  for (const onClose of [() => { throw new Error('no') }, async () => { throw new Error('no') }]) {
    assert.deepEqual(await subscribe(target, { fetch: serve(ended).fetch, onClose }).closed, { reason: 'closed' })
  }
  await new Promise(setImmediate)
  assert.equal(error.mock.calls.length, 2)
})

test('a loop over a subscription', async (t) => {
  const open = (server, options = {}) => subscribe(target, { fetch: server.fetch, ...options })

  await t.test('gets the events, and ends with the stream', async (t) => {
    hurry(t)
    const got = []
    for await (const event of open(serve(streamed(connect(0) + message(1) + message(2)), streamed(connect(2) + message(3) + close(4))))) got.push(event.message.n)
    assert.deepEqual(got, [1, 2, 3])
  })
  await t.test('has handled an event when it requests another one', async () => {
    const saved = []
    const subscription = open(serve(live(connect(0) + message(1) + message(2) + message(3))), { storage: { load: () => null, save: (place) => { saved.push(place) } } })
    for await (const event of subscription) {
      assert.equal(subscription.cursor, id(event.message.n - 1))
      if (event.message.n === 2) break
    }
    assert.deepEqual(await subscription.closed, { reason: 'stopped' })
    assert.deepEqual(saved, [id(0), id(1)])
  })
  await t.test('may close it, and has still handled the event', async () => {
    const told = []
    const subscription = open(serve(live(connect(0) + message(1) + message(2))), {
      storage: { load: () => null, save: (place) => new Promise(setImmediate).then(() => told.push(place)) },
      onClose: () => { told.push('closed') },
    })
    for await (const event of subscription) {
      told.push(event.message.n)
      subscription.close()
    }
    assert.deepEqual(told, [id(0), 1, id(1), 'closed'])
  })
  await t.test('saves nothing once it is closed', async () => {
    const saved = []
    const subscription = open(serve(live(connect(0) + message(1) + message(2))), { storage: { load: () => null, save: (place) => { saved.push(place) } } })
    for await (const _ of subscription) {
      subscription.close()
      await subscription.closed
    }
    assert.deepEqual([saved, subscription.cursor], [[id(0)], id(0)])
  })
  await t.test('does not delay its end', async () => {
    const subscription = open(serve(live(connect(0) + message(1))))
    await subscription[Symbol.asyncIterator]().next()
    subscription.close()
    assert.deepEqual(await subscription.closed, { reason: 'stopped' })
    assert.equal(subscription.cursor, id(0))
  })
  await t.test('that starts late gets all events', async () => {
    const subscription = open(serve(streamed(connect(0) + message(1) + close(2))))
    await new Promise(setImmediate)
    const got = []
    for await (const event of subscription) got.push(event.message.n)
    assert.deepEqual(got, [1])
  })
  await t.test('throws the error that ended it', async () => {
    await assert.rejects(async () => { for await (const _ of open(serve(problem(404, 'not_found')))); }, { name: 'RejoinError', status: 404, code: 'not_found' })
  })
  await t.test('throws the error that ended it, also undefined', async () => {
    const storage = { load: () => null, save: () => Promise.reject() }
    const thrown = await (async () => { for await (const _ of open(serve(live(connect(0))), { storage })); })().then(() => 'no', () => 'yes')
    assert.equal(thrown, 'yes')
  })
  await t.test('has the events for itself', async () => {
    const subscription = open(serve(live(connect(0) + message(1))))
    for await (const _ of subscription) {
      await assert.rejects(async () => { for await (const _ of subscription); }, TypeError)
      break
    }
    for await (const _ of subscription) assert.fail('an event after the end')
  })
  await t.test('needs the events for itself', async () => {
    await assert.rejects(async () => { for await (const _ of open(serve(ended), { onEvent: () => {} })); }, TypeError)
  })
})

test('positions are read from the right', () => {
  const ids = {
    main_abcdefg_17: 17n,
    'main_abcdefg_17.3': 17n,
    'a_1234567_5_abcdefg_9': 9n,
    '*_abcdefg_0': 0n,
    main_abcdefg_18446744073709551615: 18446744073709551615n,
  }
  for (const [id, want] of Object.entries(ids)) assert.equal(sequenceOf(id), want, id)
  for (const id of ['', '17', 'main_17', 'main_abcdef_17', 'main_ABCDEFG_17', 'main_abcdefg_', 'main_abcdefg_017', 'main_abcdefg_17.', 'main_abcdefg_17.x', 'main_abcdefg_-1']) {
    assert.equal(sequenceOf(id), null, id)
  }
})

test('several sessions share one connection and one cursor', async (t) => {
  hurry(t)
  const place = (n) => `group_0000001000000z_0.abcdefg.${n}_f.abcdefg.zz`
  const opening = (at) => block({ event: 'connect', id: place(at), data: { sessions: [{ session: 'a', stream: null, state: 'open' }], resumed: at > 0, retainedFor: 3600 } })
  const event = (at, session, n) => block({ id: place(at), data: { session, id: id(at), stream: 's', type: 'message', time: '2026-05-01T12:00:00Z', message: { n } } })
  const server = serve(
    streamed(opening(0) + event(1, 'a', 1) + block({ event: 'gap', data: { session: 'b', reason: 'trimmed', certain: true, stream: null, requested: '', resumesAt: '' } }) +
      block({ event: 'state', data: { session: 'b', stream: null, state: 'closed' } }) + event(2, 'b', 2)),
    problem(403, 'insufficient_scope'),
  )
  const got = []
  const { end, cursor } = await follow(server, {
    target: { sessions: ['a', 'b/c'], added: ['d'], stream: 's', base: 'http://rejoin.test' },
    onEvent: (event) => { got.push([event.session, event.stream, event.type, event.message.n]) },
    onGap: (gap) => { got.push(['gap', gap.session]) },
    onSession: (session) => { got.push([session.session, session.state]) },
  })
  assert.deepEqual(got, [['a', 's', 'message', 1], ['gap', 'b'], ['b', 'closed'], ['b', 's', 'message', 2]])
  assert.equal(server.requests[0].url.href, 'http://rejoin.test/v1/events?session=a&session=b%2Fc&added=d&stream=s')
  assert.equal(after(server.requests[1]), place(2))
  assert.equal(cursor, place(2))
  assert.equal(end.reason, 'refused')
})

test('a message of the type state is no state of a session', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(0) + block({ event: 'state', id: id(1), data: { n: 1 } })), ended)
  const { events } = await follow(server, { types: ['state'] })
  assert.deepEqual(events, [1])
})

test('an event of a later version of the edge is no message', async (t) => {
  hurry(t)
  const server = serve(streamed(connect(0) + message(1) + block({ event: 'rejoin.later', id: id(2), data: { n: 2 } }) + message(3)), ended)
  const { events, cursor } = await follow(server, { types: '*' })
  assert.deepEqual(events, [1, 3])
  assert.equal(cursor, id(3))
})

test('the empty message of a proxy without an edge is no event, and its ID no cursor', async (t) => {
  hurry(t)
  const none = streamed('retry: 50\n:\ndata:\n\n')
  const repeated = (id) => streamed(`retry: 50\nid: ${id}\ndata:\n\n`)
  const alone = serve(none, streamed(connect(0) + message(1)), repeated(id(1) + '.17'), streamed(connect(1) + message(2)), ended)
  const { events, repeats } = await follow(alone)
  assert.deepEqual([events, repeats], [[1, 2], []])
  assert.deepEqual(alone.requests.map(after), [undefined, undefined, id(1), id(1), id(2)])

  const place = 'group_0000001000000z_0.abcdefg.1_9.abcdefg.zz'
  const opening = block({ event: 'connect', id: place, data: { sessions: [] } })
  const several = serve(none, streamed(opening), repeated('group_0000001000000z_9.17'), streamed(opening), ended)
  const { events: none2, cursor } = await follow(several, { target: { sessions: ['a'], base: 'http://rejoin.test' } })
  assert.deepEqual([none2, cursor], [[], place])
  assert.deepEqual(several.requests.map(after), [undefined, undefined, place, place, place])
})

// browser returns rejoin.js as a browser loads it, and the EventSources that it makes.
async function browser(t) {
  const sources = []
  class EventSource {
    static CLOSED = 2
    readyState = 1
    listeners = {}
    constructor(url) {
      this.url = url
      sources.push(this)
      queueMicrotask(() => this.onopen()) // before any timer: one that opens late is replaced by another
    }
    addEventListener(type, listener) {
      this.listeners[type] = listener
    }
    close() {
      this.readyState = EventSource.CLOSED
    }
    say(type, lastEventId, data) {
      this.listeners[type]({ type, lastEventId, data })
    }
  }
  const { process } = globalThis
  Object.assign(globalThis, { EventSource, process: undefined }) // as in a browser, while the module is loaded
  const inBrowser = await import('../rejoin.js?browser').finally(() => Object.assign(globalThis, { process }))
  t.after(() => { delete globalThis.EventSource })
  return { inBrowser, sources, EventSource }
}

const turns = async () => { for (let n = 0; n < 20; n++) await new Promise(setImmediate) }

test('an EventSource is replaced after the empty message of a proxy', async (t) => {
  hurry(t)
  const { inBrowser, sources, EventSource } = await browser(t)
  const place = 'group_0000001000000z_0.abcdefg.1_9.abcdefg.zz'
  const events = []
  const subscription = inBrowser.subscribe({ sessions: ['a'], base: 'http://rejoin.test' }, { onEvent: (event) => { events.push(event) } })
  assert.equal(subscription.transport, 'eventsource')
  await turns()
  sources[0].say('connect', place, '{"sessions":[]}')
  sources[0].say('message', 'group_0000001000000z_9.17', '')
  await turns()
  assert.equal(sources.length, 2, 'the first one would reconnect with the ID that was cut')
  assert.equal(sources[0].readyState, EventSource.CLOSED)
  assert.equal(sources[1].url.searchParams.get('after'), place)
  assert.deepEqual(events, [])
  subscription.close()
  assert.equal((await subscription.closed).reason, 'stopped')
})

test('own events of an EventSource are not those of the stream', async (t) => {
  hurry(t)
  const { inBrowser, sources } = await browser(t)
  const got = []
  const saved = []
  const storage = { load: () => null, save: (place) => { saved.push(place) } }
  const subscription = inBrowser.subscribe(target, { types: ['error', 'open'], storage, onEvent: ({ type }) => { got.push(type) } })
  await turns()
  sources[0].say('connect', id(1), '{"stream":"s"}')
  sources[0].say('error')
  sources[0].say('open')
  sources[0].say('message', id(2), '{}')
  await turns()
  subscription.close()
  await subscription.closed
  assert.deepEqual([got, saved], [['message'], [id(1), id(2)]])
})

test('an onState that throws ends the subscription, also when an EventSource has lost its connection', async (t) => {
  hurry(t)
  const { inBrowser, sources } = await browser(t)
  const mistake = new Error('no')
  const subscription = inBrowser.subscribe(target, { onEvent: () => {}, onClose: () => {}, onState: (state) => { if (state === 'waiting') throw mistake } })
  await turns()
  sources[0].say('connect', id(1), '{"stream":"s"}')
  await turns()
  sources[0].readyState = 0
  sources[0].onerror()
  assert.deepEqual(await subscription.closed, { reason: 'failed', error: mistake })
  assert.equal(sources[0].readyState, 2)
})

test('an EventSource that has lost its connection is waiting once its events are handled', async (t) => {
  hurry(t)
  const { inBrowser, sources } = await browser(t)
  const told = []
  const subscription = inBrowser.subscribe(target, { onEvent: ({ message }) => { told.push(message) }, onState: (state) => { told.push(state) } })
  await turns()
  sources[0].say('connect', id(1), '{"stream":"s"}')
  sources[0].say('message', id(2), '2')
  sources[0].readyState = 0
  sources[0].onerror()
  await turns()
  sources[0].onerror() // again, while there is no server
  await turns()
  sources[0].readyState = 1
  sources[0].onopen()
  sources[0].say('connect', id(2), '{"stream":"s"}')
  await turns()
  subscription.close()
  await subscription.closed
  assert.deepEqual(told, ['connecting', 'live', 2, 'waiting', 'live'])
})

// A browser dispatches a message only after its last byte.
test('a message that takes longer than the silence arrives by fetch', async (t) => {
  hurry(t)
  const { inBrowser, sources } = await browser(t)
  const server = serve(streamed(connect()), ended)
  const { fetch } = globalThis
  globalThis.fetch = server.fetch
  t.after(() => { globalThis.fetch = fetch })
  const subscription = inBrowser.subscribe({ session: 'x', stream: 's', base: 'http://rejoin.test' }, { silence: 20, onEvent: () => {} })
  await subscription.closed
  assert.deepEqual([sources.length, server.requests.length > 0, subscription.transport], [1, true, 'fetch'])
})

test('without credentials a stream uses fetch', async (t) => {
  const { inBrowser, sources } = await browser(t)
  const subscription = inBrowser.subscribe(target, { credentials: 'omit', onEvent: () => {} })
  assert.deepEqual([subscription.transport, sources.length], ['fetch', 0])
  subscription.close()
  await subscription.closed
})

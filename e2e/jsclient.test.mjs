// The JavaScript client in Node, with the real program. Started by jsclient_test.go,
// which kills and starts the program when it is asked to.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { publish, subscribe } from '../services/sse-edge/rejoinjs/rejoin.js'

const base = process.env.EDGE
const counted = (n) => ({ jsonrpc: '2.0', method: 'count', params: { n } })
const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i)

async function order(what) {
  const { ok } = await fetch(process.env.CONTROL + what, { method: 'POST' })
  assert.ok(ok, what)
}

async function count(session, stream, from, to, options = {}) {
  for (const n of numbers(from, to)) await publish(session, stream, counted(n), { base, ...options })
}

// close is repeated while the log does not answer in time.
async function close(session) {
  let status
  do ({ status } = await fetch(`${base}/v1/sessions/${session}`, { method: 'DELETE' }))
  while (status === 503)
  assert.equal(status, 204)
}

// until reads events up to the n-th, without leaving the loop.
async function until(events, n) {
  const got = []
  while (got.at(-1) !== n) {
    const { value, done } = await events.next()
    assert.ok(!done, `it ended after ${got}`)
    got.push(value.message.params.n)
  }
  return got
}

test('a subscription survives kill -9 and misses nothing', async () => {
  const target = { session: 'node', stream: 's', base }
  const gaps = []
  const subscription = subscribe(target, { onGap: (gap) => gaps.push(gap) })
  const events = subscription[Symbol.asyncIterator]()
  await count('node', 's', 1, 5)
  assert.deepEqual(await until(events, 5), numbers(1, 5))

  await order('/kill')
  await order('/start')
  await count('node', 's', 6, 9)
  assert.deepEqual(await until(events, 9), numbers(6, 9))
  await events.return()

  // Another one that goes on where this one was: the last event was not asked on.
  const later = subscribe(target, { cursor: subscription.cursor, onGap: (gap) => gaps.push(gap) })
  assert.deepEqual(await until(later[Symbol.asyncIterator](), 9), [9])
  later.close()
  await later.closed
  assert.deepEqual(gaps, [])
})

test('a publish that meets an outage is stored once', async () => {
  await count('outage', 's', 1, 1)
  await order('/kill')
  const publishing = publish('outage', 's', counted(2), { base, attempts: 30 })
  await order('/start')
  await publishing
  await count('outage', 's', 3, 3)
  const again = { base, key: 'k' }
  const first = await publish('outage', 's', counted(4), again)
  assert.deepEqual(await publish('outage', 's', counted(4), again), { ...first, duplicate: true })
  await count('outage', 's', 5, 5)
  const subscription = subscribe({ session: 'outage', stream: 's', base })
  assert.deepEqual(await until(subscription[Symbol.asyncIterator](), 5), numbers(1, 5))
  subscription.close()
  await subscription.closed
})

test('a session is followed with all its streams and types, until it is closed', async () => {
  await publish('flow', 'a', counted(1), { base })
  await publish('flow', 'b', counted(2), { base, type: 'progress' })
  await publish('flow', 'a', counted(3), { base, type: '進捗' })
  const got = []
  for await (const { id, stream, type, time, message } of subscribe({ session: 'flow', base })) {
    assert.match(id, /^\*_/)
    assert.ok(!Number.isNaN(Date.parse(time)), time)
    got.push(`${stream} ${type} ${message.params.n}`)
    if (got.length === 3) await close('flow')
  }
  assert.deepEqual(got, ['a message 1', 'b progress 2', 'a 進捗 3'])
  for await (const _ of subscribe({ session: 'flow', stream: 'a', base }, { from: 'now' })) assert.fail('it has ended, and all that comes is its end')
  await assert.rejects(publish('flow', 'a', counted(4), { base }), { status: 409, code: 'session_closed', unknown: false })
})

test('a place that belongs elsewhere is a gap, and then all that is retained', async () => {
  await count('foreign', 's', 1, 3)
  const gaps = []
  const subscription = subscribe({ session: 'foreign', stream: 's', base }, { cursor: 's_0000000_999999', onGap: (gap) => gaps.push(gap) })
  assert.deepEqual(await until(subscription[Symbol.asyncIterator](), 3), numbers(1, 3))
  subscription.close()
  await subscription.closed
  assert.deepEqual(gaps.map(({ reason, certain, stream, requested }) => ({ reason, certain, stream, requested })), [
    { reason: 'unknown', certain: true, stream: 's', requested: 's_0000000_999999' },
  ])
})

test('what the server refuses is told', async () => {
  const refused = async (target, want) => {
    const { reason, error } = await subscribe(target, { onClose: () => {} }).closed
    assert.deepEqual({ reason, status: error.status, code: error.code }, { reason: 'refused', ...want })
  }
  await refused({ session: 'ü', base }, { status: 400, code: 'invalid_name' })
  await refused({ url: base + '/v1/elsewhere' }, { status: 404, code: 'not_found' })
  await refused({ url: base + '/v1/sessions/x/streams/s/events?after=s_0000000_1&on_gap=error' }, { status: 410, code: 'gap' })
})

// The JavaScript client in Node, with the real program. Started by jsclient_test.go,
// which kills and starts the program when it is asked to.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { publish, subscribe } from '../services/sse-edge/rejoinjs/rejoin.js'

const base = process.env.EDGE
const counted = (n) => ({ jsonrpc: '2.0', method: 'count', params: { n } })

async function order(what) {
  const { ok } = await fetch(process.env.CONTROL + what, { method: 'POST' })
  assert.ok(ok, what)
}

// close is repeated while the log does not answer in time.
async function close(session) {
  let status
  do ({ status } = await fetch(`${base}/v1/sessions/${session}`, { method: 'DELETE' }))
  while (status === 503)
  assert.equal(status, 204)
}

test('a publish that meets an outage is stored once', async () => {
  await publish('outage', 's', counted(1), { base })
  await order('/kill')
  const publishing = publish('outage', 's', counted(2), { base, attempts: 30 })
  await order('/start')
  await publishing
  const again = { base, key: 'k' }
  const first = await publish('outage', 's', counted(3), again)
  assert.deepEqual(await publish('outage', 's', counted(3), again), { ...first, duplicate: true })
  await publish('outage', 's', counted(4), { base })
  const got = []
  for await (const { message } of subscribe({ session: 'outage', stream: 's', base })) if (got.push(message.params.n) === 4) break
  assert.deepEqual(got, [1, 2, 3, 4])
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

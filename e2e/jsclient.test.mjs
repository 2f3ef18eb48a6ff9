// The JavaScript client in Node, with the real program at EDGE.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { publish, subscribe } from '../services/sse-edge/rejoinjs/rejoin.js'

const base = process.env.EDGE
const counted = (n) => ({ jsonrpc: '2.0', method: 'count', params: { n } })

// close is repeated while the log does not answer in time.
async function close(session) {
  let status
  do ({ status } = await fetch(`${base}/v1/sessions/${session}`, { method: 'DELETE' }))
  while (status === 503)
  assert.equal(status, 204)
}

test('a session is followed with all its streams and types, until it is closed', async () => {
  const first = await publish('flow', 'a', counted(1), { base, key: 'k' })
  assert.deepEqual(await publish('flow', 'a', counted(1), { base, key: 'k' }), { ...first, duplicate: true })
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
  for await (const _ of subscribe({ session: 'flow', stream: 'a', base }, { from: 'now' })) assert.fail('the session has ended: only its end follows')
  await assert.rejects(publish('flow', 'a', counted(4), { base }), { status: 409, code: 'session_closed', unknown: false })
})

// The code in the README of the JavaScript client, and every option with a type of the platform.
import { publish, RejoinError, subscribe } from '../../../services/sse-edge/rejoinjs/rejoin.js'

const show = (what: unknown) => console.log(what)
const subscription = subscribe({ session: 'demo', stream: 'main' }, {
  storage: 'my place',
  headers: { 'X-Tenant': 'a' },
  credentials: 'include',
  signal: AbortSignal.timeout(1000),
  onEvent: (event) => show(event.message),
  onGap: (gap) => show(gap.reason),
  onClose: ({ reason, error }) => show([reason, error]),
  onState: (state) => show(state),
})
subscription.close()

const token = async (refused?: boolean) => (refused ? 'new' : 'old')
for await (const event of subscribe({ session: 'demo', base: 'https://rejoin.example' }, { token })) {
  show([event.stream, event.message])
}

subscribe({ sessions: ['chat-1', 'chat-2'] }, {
  storage: 'my chats',
  onEvent: (event) => show([event.session, event.message]),
  onGap: (gap) => show(gap.session),
  onSession: ({ session, state }) => show([session, state]),
})

try {
  const { id, duplicate } = await publish('demo', 'main', { order: 17 }, { type: 'progress', headers: { 'X-Tenant': 'a' } })
  show([id, duplicate])
} catch (error) {
  if (error instanceof RejoinError) show([error.status, error.code, error.unknown])
}

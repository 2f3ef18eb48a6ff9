// subscribe.ts with rejoin.js, the JavaScript client: it reconnects, keeps the cursor, renews
// tokens and notices a dead connection.
//
//   node follow.ts demo main place.txt
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { subscribe } from '../../services/sse-edge/rejoinjs/rejoin.js' // or 'rejoin-client', the same as a package

const [session, stream, file] = process.argv.slice(2)
if (!file) {
  console.error('usage: follow.ts SESSION STREAM FILE')
  process.exit(2)
}
const subscription = subscribe({ session, stream, base: process.env['REJOIN_URL'] ?? 'http://127.0.0.1:8080' }, {
  token: process.env['REJOIN_TOKEN'],
  storage: {
    load: () => (existsSync(file) ? readFileSync(file, 'ascii') : null),
    save(place) {
      writeFileSync(file + '.new', place)
      renameSync(file + '.new', file)
    },
  },
  onEvent: ({ id, type, data }) => console.log(id, type, data),
  onState: (_, { error }) => error && console.error(`${(error as Error).cause ?? error}; trying again`),
  onGap: (gap) => console.error('events are missing:', gap.reason),
})
const { reason, error } = await subscription.closed
if (reason !== 'closed') throw error ?? new Error(reason)

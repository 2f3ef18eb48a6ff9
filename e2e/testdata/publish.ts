// Publishes the lines of standard input with the JavaScript client:
//   node publish.ts SESSION STREAM KEY
import { createInterface } from 'node:readline'
import { publish } from '../../services/sse-edge/rejoinjs/rejoin.js'

const [session, stream, key] = process.argv.slice(2)
if (!stream) throw new Error('usage: publish.ts SESSION STREAM KEY')
let n = 0
for await (const line of createInterface(process.stdin)) {
  const stored = publish(session, stream, line, { base: process.env['REJOIN_URL'], key: `${key}-${++n}`, attempts: 30 })
  console.log(JSON.stringify(await stored.catch((error) => { throw new Error(JSON.stringify(error)) })))
}

// Prints the messages of a stream, each once, over restarts of Rejoin and of itself. Node
// 22.18 or newer runs it as it is (22.6 with --experimental-strip-types).
//
//   node subscribe.ts demo main place.txt
//
// The file holds the cursor after the last handled event. REJOIN_URL is Rejoin's address,
// REJOIN_TOKEN is a bearer token. With rejoin.js it is a few lines: follow.ts.
import { existsSync, readFileSync, realpathSync, renameSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

const SILENCE = 45_000 // milliseconds without a byte after which a connection is dead: three heartbeats

type Event = { type: string; id?: string; data: string }

/** Yields the events of a connection until it ends. An event that was cut off is left out. */
async function* events(url: string, headers: Record<string, string>): AsyncGenerator<Event> {
  const connection = new AbortController()
  const silence = setTimeout(() => connection.abort(), SILENCE)
  try {
    const response = await fetch(url, { headers, signal: connection.signal })
    if (response.status === 204) yield { type: 'close', data: '' } // closed, without an event after the cursor
    if (!response.ok && response.status < 500 && ![408, 425, 429].includes(response.status)) throw new Refused(await response.text())
    if (response.status !== 200) throw new TypeError('status ' + response.status)
    const decoder = new TextDecoder()
    let rest = ''
    let event: Event = { type: 'message', data: '' }
    for await (const chunk of response.body!) {
      silence.refresh()
      const lines = decoder.decode(chunk, { stream: true }).split('\n')
      lines[0] = rest + lines[0]
      rest = lines.pop()!
      for (const line of lines.map((line) => line.replace(/\r$/, ''))) {
        const [, name, value] = /^([^:]*)(?:: ?(.*))?$/s.exec(line)!
        if (name === 'event') event.type = value
        else if (name === 'id') event.id = value
        else if (name === 'data') event.data += value + '\n'
        else if (name === 'retry' && /^\d+$/.test(value)) yield { type: 'retry', data: value }
        else if (line === '') {
          if (event.data) yield { ...event, data: event.data.slice(0, -1) }
          event = { type: 'message', data: '' }
        }
      }
    }
  } catch (error) {
    // fetch throws a TypeError for every failure of the network.
    if (!connection.signal.aborted && !(error instanceof TypeError)) throw error
    console.error(`${url}: ${(error as Error).cause ?? error}; trying again`)
  } finally {
    clearTimeout(silence)
    connection.abort()
  }
}

export type Options = {
  url: string
  token?: string
  load(): string
  save(place: string): void
  onMessage(event: Event): void
  onGap(gap: { reason: string; certain: boolean; stream: string | null; requested: string; resumesAt: string }): void
}

/** Resolves when the stream is closed and all its events are handled. */
export async function follow({ url, token, load, save, onMessage, onGap }: Options): Promise<void> {
  for (let pause = 3000; ; await sleep(pause * (1 + Math.random() / 2))) {
    const headers: Record<string, string> = { Accept: 'text/event-stream' }
    const place = load()
    if (place) headers['Last-Event-ID'] = place
    if (token) headers['Authorization'] = 'Bearer ' + token
    // Errors of load, save and the callbacks end the program; only events reconnects.
    for await (const event of events(url, headers)) {
      if (event.type === 'retry') pause = Number(event.data)
      else if (event.type === 'gap') onGap(JSON.parse(event.data))
      else if (event.data && !/^(connect|cursor|close|expiring|rejoin\..*)$/s.test(event.type)) onMessage(event) // empty: a proxy's; rejoin.: of a later version
      if (event.id) save(event.id) // after the handled event, never before it
      if (event.type === 'close') return
    }
  }
}

/** Rejoin refuses for good. */
export class Refused extends Error {}

if (import.meta.filename === realpathSync(process.argv[1])) {
  const [session, stream, file] = process.argv.slice(2)
  if (!file) {
    console.error('usage: subscribe.ts SESSION STREAM FILE')
    process.exit(2)
  }
  const names = [session, stream].map(encodeURIComponent)
  await follow({
    url: `${(process.env['REJOIN_URL'] ?? 'http://127.0.0.1:8080').replace(/\/$/, '')}/v1/sessions/${names[0]}/streams/${names[1]}/events`,
    token: process.env['REJOIN_TOKEN'],
    load: () => (existsSync(file) ? readFileSync(file, 'ascii').trim() : ''),
    save(place) {
      writeFileSync(file + '.new', place) // replaced as a whole, so that a crash leaves the old one
      renameSync(file + '.new', file)
    },
    onMessage: ({ id, type, data }) => console.log(id, type, data),
    // Get the missed events from elsewhere: ask the service that has the whole state.
    onGap: (gap) => console.error('events are missing:', gap.reason),
  })
}

// A program with examples/typescript/subscribe.ts whose handler throws the error type of fetch.
import { follow } from '../../examples/typescript/subscribe.ts'

await follow({
  url: process.env['REJOIN_URL'] + '/v1/sessions/demo/streams/main/events',
  load: () => '',
  save() {},
  onMessage() {
    throw new TypeError('of the handler')
  },
  onGap() {},
})

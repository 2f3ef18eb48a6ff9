// Calls one tool with @modelcontextprotocol/ext-tasks, which waits for the task of the call,
// and writes the outcomes, a line of JSON each:
//   node tasks.mjs <node_modules> <URL> <tool> <arguments as JSON>
import { setTimeout as sleep } from 'node:timers/promises';

const [folder, url, tool, args] = process.argv.slice(2);
const tell = (line) => console.log(JSON.stringify(line));
const { Client, StreamableHTTPClientTransport } = await import(`${folder}/@modelcontextprotocol/client/dist/index.mjs`);
const { createTaskSessionFromClient, resultFromTaskOutcome } = await import(`${folder}/@modelcontextprotocol/ext-tasks/dist/client/index.js`);

const clientInfo = { name: 'rejoin-e2e', version: '1' };
const revision = '2026-07-28';
const client = new Client(clientInfo, { versionNegotiation: { mode: { pin: revision } } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

// The SDK does not take a task for a response, so these messages do not pass through its client.
const transport = new StreamableHTTPClientTransport(new URL(url));
const waiting = new Map();
transport.onmessage = ({ id, result, error }) => {
  waiting.get(id)?.(error ? { kind: 'error', error } : { kind: 'result', result });
  waiting.delete(id);
};
transport.onerror = (error) => tell({ trouble: String(error) });
await transport.start();
let last = 0;
async function rawDispatch({ method, params }) {
  for (;;) {
    const id = `raw-${++last}`;
    const response = new Promise((resolve) => { waiting.set(id, resolve); });
    try {
      await transport.send({ jsonrpc: '2.0', id, method, params });
      return await response;
    } catch (error) {
      if (method === 'tools/call') throw error; // it is made once
      await sleep(50);
    }
  }
}

const session = createTaskSessionFromClient(client, { endpointId: 'rejoin-e2e', rawDispatch, v2RequestFraming: { protocolVersion: revision, clientInfo, clientCapabilities: {} } });
try {
  const execution = await session.callTool(tool, JSON.parse(args));
  if (execution.kind !== 'task') throw new Error(`the call is ${execution.kind}`);
  const { outcome } = await execution.settle();
  tell({ result: resultFromTaskOutcome(outcome).content[0].text });
} catch (error) {
  tell({ error: `${error} ${error.cause ?? ''}` });
}
for await (const _ of process.stdin);
process.exit(0);

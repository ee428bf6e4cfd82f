// kafkajs, driven line by line: a JSON request on stdin, a JSON answer on stdout.
//
//   {"id": 1, "call": "admin", "method": "createTopics", "arguments": {…}}
//   {"id": 2, "call": "produce", "producer": {…}, "send": {"topic": …, "messages": [...]}}
//   {"id": 3, "call": "consume", "group": …, "topic": …, "count": 10, "seek": {…}}
//   {"id": 4, "call": "join", "member": "a", "consumer": {"groupId": …}, "topics": […], "run": {…}}
//   {"id": 5, "call": "look", "member": "a"}
//   {"id": 6, "call": "member", "member": "a", "method": "pause", "arguments": […]}
//   {"id": 7, "call": "begin", "transaction": "a", "producer": {"transactionalId": …}}
//   {"id": 8, "call": "transact", "transaction": "a", "method": "commit", "arguments": […]}
//
// Keys, values and header values are base64 strings. An error is answered as data, so that
// the tests can look at its code.

'use strict'

const readline = require('node:readline')
const zlib = require('node:zlib')
const lz4 = require('lz4js')
const xxh32 = require('lz4js/xxh32')
const snappy = require('snappyjs')
const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = require('kafkajs')

const codec = compress => () => ({
  compress: async encoder => Buffer.from(compress(encoder.buffer)),
  decompress: async () => {
    throw new Error('only produced with, never consumed')
  },
})
CompressionCodecs[CompressionTypes.Snappy] = codec(snappy.compress)
CompressionCodecs[CompressionTypes.LZ4] = codec(lz4Frame)
CompressionCodecs[CompressionTypes.ZSTD] = codec(zlib.zstdCompressSync)

// lz4js leaves the bit "blocks are independent" unset, and Kafka refuses such frames. What is
// sent here fits one block, so the bit is true: set it, and the header's checksum anew.
function lz4Frame(data) {
  const frame = Buffer.from(lz4.compress(data))
  frame[4] |= 0x20
  frame[6] = (xxh32.hash(0, frame, 4, 2) >> 8) & 0xff
  return frame
}

const kafka = new Kafka({
  clientId: 'kafkajs-conformance',
  brokers: [process.argv[2]],
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, retries: 3 },
})
const admin = kafka.admin()
const producers = new Map()

const bytes = text => (text === null || text === undefined ? text : Buffer.from(text, 'base64'))

async function producer(settings) {
  const name = JSON.stringify(settings)
  if (!producers.has(name)) {
    const made = kafka.producer({
      createPartitioner: Partitioners.DefaultPartitioner,
      ...settings,
    })
    await made.connect()
    producers.set(name, made)
  }
  return producers.get(name)
}

async function produce(request) {
  const messages = request.send.messages.map(message => ({
    ...message,
    key: bytes(message.key),
    value: bytes(message.value),
    headers: Object.fromEntries(
      Object.entries(message.headers || {}).map(([key, value]) => [
        key,
        Array.isArray(value) ? value.map(bytes) : bytes(value),
      ])
    ),
  }))
  return (await producer(request.producer || {})).send({ ...request.send, messages })
}

const text = value => (value === null || value === undefined ? null : value.toString('base64'))

// The first `count` records of a topic, as a member of a group; after `seek`, if there is one.
async function consume(request) {
  const consumer = kafka.consumer({ groupId: request.group })
  const found = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topic: request.topic, fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      consumer
        .run({
          eachMessage: async ({ partition, message }) => {
            const { offset, timestamp, key, value, headers } = message
            found.push({
              partition,
              offset,
              timestamp,
              key: text(key),
              value: text(value),
              headers: Object.fromEntries(
                Object.entries(headers || {}).map(([name, one]) => [name, [one].flat().map(text)])
              ),
            })
            if (found.length === request.count) resolve()
          },
        })
        .catch(reject)
      if (request.seek) consumer.seek({ topic: request.topic, ...request.seek })
    })
  } finally {
    await consumer.disconnect()
  }
  return found.slice(0, request.count)
}

const members = new Map()

// A consumer that goes on reading while other calls are taken. `look` tells what it has seen.
async function join(request) {
  const consumer = kafka.consumer({ ...request.consumer, retry: { initialRetryTime: 50 } })
  const member = { consumer, values: [], owned: {}, joins: 0, crash: null }
  members.set(request.member, member)
  consumer.on(consumer.events.GROUP_JOIN, event => {
    member.owned = event.payload.memberAssignment
    member.joins += 1
  })
  consumer.on(consumer.events.CRASH, event => {
    member.crash = described(event.payload.error)
  })
  await consumer.connect()
  const topics = request.topics || [new RegExp(request.pattern)]
  await consumer.subscribe({ topics, fromBeginning: true })
  await consumer.run({
    ...request.run,
    eachMessage: async ({ message }) => {
      member.values.push(message.value.toString())
    },
  })
}

function look(request) {
  const { values, owned, joins, crash } = members.get(request.member)
  return { values, owned, joins, crash }
}

async function call(request) {
  const { consumer } = members.get(request.member)
  return consumer[request.method](...(request.arguments || []))
}

const transactions = new Map()

// A transaction of a new producer with these settings, or, without any, of the one before.
async function begin(request) {
  const { settings } = transactions.get(request.transaction) || {}
  const wanted = request.producer || settings
  const made = await producer(wanted)
  transactions.set(request.transaction, { settings: wanted, open: await made.transaction() })
}

async function transact(request) {
  const { open } = transactions.get(request.transaction)
  return open[request.method](...(request.arguments || []))
}

const calls = {
  begin,
  transact,
  admin: request => admin[request.method](request.arguments),
  consume,
  join,
  look,
  member: call,
  produce,
}

const described = error => ({
  name: error.name,
  type: error.type,
  code: error.code,
  message: error.message,
  errors: [...(error.errors || []), ...(error.groups || []).map(one => one.error)].map(described),
  cause: error.cause ? described(error.cause) : undefined,
})

async function answer(line) {
  const request = JSON.parse(line)
  let reply
  try {
    reply = { result: (await calls[request.call](request)) ?? null }
  } catch (error) {
    reply = { error: described(error) }
  }
  process.stdout.write(JSON.stringify({ id: request.id, ...reply }) + '\n')
}

async function main() {
  await admin.connect()
  process.stdout.write(JSON.stringify({ ready: true }) + '\n')
  for await (const line of readline.createInterface({ input: process.stdin })) {
    await answer(line)
  }
  await Promise.all([...producers.values()].map(one => one.disconnect()))
  await Promise.all([...members.values()].map(one => one.consumer.disconnect()))
  await admin.disconnect()
}

main().then(
  () => process.exit(0),
  error => {
    process.stderr.write(`${error.stack}\n`)
    process.exit(1)
  }
)

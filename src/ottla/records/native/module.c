/* What Python sees. `ottla.records.walker` is the only one to import it, and says what the functions
 * promise; `ottla.records.plain_walker` and `plain_cleaning` define what they give.
 *
 * Walks over chunks run without the interpreter's lock. So do those over one batch if it is large;
 * a small one is done sooner than the lock would come back.
 */
#include "module.h"

#include <stdlib.h>

#include "crc32c.h"
#include "keys.h"
#include "walks.h"

#define INTERFACE 5 /* what `walker` expects */
#define LONG_WALK (1 << 20)

int refuse(PyObject *module, const failure *why) {
    PyObject *invalid = ((module_state *)PyModule_GetState(module))->invalid_batch;
    long long a = why->a, b = why->b;
    switch (why->fault) {
    case NO_MEMORY: PyErr_NoMemory(); break;
    case WIDE_VARINT: PyErr_SetString(invalid, "a varint has more than 64 bits"); break;
    case RECORD_LENGTH:
        PyErr_Format(invalid, "a record of %lld bytes where %lld are left", a, b);
        break;
    case RECORD_SIZE:
        PyErr_Format(invalid, "a record of %lld bytes has content for %lld", a, b);
        break;
    case HEADER_COUNT:
        PyErr_Format(invalid, "a record claims %lld headers in %lld bytes", a, b);
        break;
    case HEADER_KEY: PyErr_Format(invalid, "a header key of %lld bytes", a); break;
    case LEFTOVER:
        PyErr_Format(invalid, "%lld bytes after the last of %lld records", a, b);
        break;
    case OFFSET_DELTA: PyErr_Format(invalid, "an offset delta of %lld", a); break;
    case TOO_WIDE:
        PyErr_SetString(invalid, "a record's offset has more than 64 bits");
        break;
    case TOO_LARGE: PyErr_SetString(invalid, "a batch of more than 2 GB"); break;
    default: PyErr_SetString(invalid, "the records run past the end of the batch");
    }
    return 0;
}

static PyThreadState *let_others_run(const Py_buffer *data) {
    return data->len >= LONG_WALK ? PyEval_SaveThread() : NULL;
}

static void go_on(PyThreadState *saved) {
    if (saved != NULL) PyEval_RestoreThread(saved);
}

static PyObject *py_summarize(PyObject *module, PyObject *args) {
    Py_buffer data;
    long long count;
    summary result;
    failure why;
    if (!PyArg_ParseTuple(args, "y*L", &data, &count)) return NULL;
    PyThreadState *saved = let_others_run(&data);
    int sound = summarize(data.buf, data.len, count, &result, &why);
    go_on(saved);
    PyBuffer_Release(&data);
    if (!sound) {
        refuse(module, &why);
        return NULL;
    }
    return Py_BuildValue("(LLNL)", (long long)result.oldest_delta, (long long)result.newest_delta,
                         PyBool_FromLong(result.in_order), (long long)result.keyless);
}

static PyObject *as_list(const offender *found, int64_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (Py_ssize_t index = 0; list != NULL && index < count; index++) {
        const offender *each = found + index;
        PyObject *item =
            Py_BuildValue("(LLLN)", (long long)each->index, (long long)each->offset_delta,
                          (long long)each->timestamp_delta, PyBool_FromLong(each->has_key));
        if (item == NULL || PyList_SetItem(list, index, item) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *py_find_offenders(PyObject *module, PyObject *args) {
    Py_buffer data;
    long long count, oldest, newest, exempt, limit;
    int keyed, has_exempt;
    failure why;
    if (!PyArg_ParseTuple(args, "y*LpLLpLL", &data, &count, &keyed, &oldest, &newest, &has_exempt,
                          &exempt, &limit))
        return NULL;
    if (limit < 0) limit = 0;
    /* No more than there can be, so that a count out of thin air costs no memory. */
    if (limit > data.len / SMALLEST_RECORD) limit = data.len / SMALLEST_RECORD;
    offender *found = malloc((size_t)(limit + 1) * sizeof(offender));
    if (found == NULL) {
        PyBuffer_Release(&data);
        return PyErr_NoMemory();
    }
    rules broken = {keyed, has_exempt, oldest, newest, exempt};
    int64_t total, late;
    PyThreadState *saved = let_others_run(&data);
    int sound =
        find_offenders(data.buf, data.len, count, &broken, found, limit, &total, &late, &why);
    go_on(saved);
    PyBuffer_Release(&data);
    PyObject *result = NULL;
    if (sound) {
        PyObject *list = as_list(found, total < limit ? total : limit);
        if (list != NULL)
            result = Py_BuildValue("(LLN)", (long long)total, (long long)late, list);
    } else {
        refuse(module, &why);
    }
    free(found);
    return result;
}

static PyObject *py_first_at_or_after(PyObject *module, PyObject *args) {
    Py_buffer data;
    long long count, base_offset, base_timestamp, timestamp, min_offset;
    failure why;
    if (!PyArg_ParseTuple(args, "y*LLLLL", &data, &count, &base_offset, &base_timestamp, &timestamp,
                          &min_offset))
        return NULL;
    int found;
    int64_t offset, moment;
    PyThreadState *saved = let_others_run(&data);
    int sound = first_at_or_after(data.buf, data.len, count, base_offset, base_timestamp, timestamp,
                                  min_offset, &found, &offset, &moment, &why);
    go_on(saved);
    PyBuffer_Release(&data);
    if (!sound) {
        refuse(module, &why);
        return NULL;
    }
    if (!found) Py_RETURN_NONE;
    return Py_BuildValue("(LL)", (long long)offset, (long long)moment);
}

static PyObject *py_renumber(PyObject *module, PyObject *args) {
    Py_buffer data;
    PyObject *result = NULL;
    long long count;
    int same_time;
    int64_t size;
    failure why;
    if (!PyArg_ParseTuple(args, "y*Lp", &data, &count, &same_time)) return NULL;
    PyThreadState *saved = let_others_run(&data);
    int sound = measure_renumbered(data.buf, data.len, count, same_time, &size, &why);
    go_on(saved);
    if (!sound) {
        refuse(module, &why);
    } else if ((result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)) != NULL) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(result);
        saved = let_others_run(&data);
        int done = write_renumbered(data.buf, data.len, count, same_time, out, size);
        go_on(saved);
        if (!done) {
            Py_CLEAR(result);
            PyErr_SetString(PyExc_ValueError, "the records changed while they were read");
        }
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *py_crc32c(PyObject *module, PyObject *args) {
    Py_buffer data;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
    uint32_t crc = crc32c(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *py_siphash128(PyObject *module, PyObject *args) {
    Py_buffer secret, data;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*", &secret, &data)) return NULL;
    PyObject *result = NULL;
    if (secret.len == 16) {
        const uint64_t words[2] = {load_le64(secret.buf),
                                   load_le64((const uint8_t *)secret.buf + 8)};
        hash128 hash = siphash128(words, data.buf, (size_t)data.len);
        result = Py_BuildValue("(KK)", (unsigned long long)hash.low, (unsigned long long)hash.high);
    } else {
        PyErr_SetString(PyExc_ValueError, "a secret has 16 bytes");
    }
    PyBuffer_Release(&secret);
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef functions[] = {
    {"summarize", py_summarize, METH_VARARGS, NULL},
    {"find_offenders", py_find_offenders, METH_VARARGS, NULL},
    {"first_at_or_after", py_first_at_or_after, METH_VARARGS, NULL},
    {"renumber", py_renumber, METH_VARARGS, NULL},
    {"index_chunk", py_index_chunk, METH_VARARGS, NULL},
    {"index_records", py_index_records, METH_VARARGS, NULL},
    {"filter_chunk", py_filter_chunk, METH_VARARGS, NULL},
    {"filter_records", py_filter_records, METH_VARARGS, NULL},
    {"outline", py_outline, METH_VARARGS, NULL},
    {"fill_columns", py_fill_columns, METH_VARARGS, NULL},
    {"route", py_route, METH_VARARGS, NULL},
    {"sort_by_lane", py_sort_by_lane, METH_VARARGS, NULL},
    {"encode", py_encode, METH_VARARGS, NULL},
    {"crc32c", py_crc32c, METH_VARARGS, NULL},
    {"siphash128", py_siphash128, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    prepare_crc32c();
    PyObject *errors = PyImport_ImportModule("ottla.records.errors");
    if (errors == NULL) return -1;
    state->invalid_batch = PyObject_GetAttrString(errors, "InvalidBatch");
    Py_DECREF(errors);
    if (state->invalid_batch == NULL) return -1;
    state->key_offsets = PyType_FromModuleAndSpec(module, &key_offsets_spec, NULL);
    if (state->key_offsets == NULL) return -1;
    if (PyModule_AddObjectRef(module, "KeyOffsets", state->key_offsets) < 0) return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int visit_state(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->invalid_batch);
    Py_VISIT(state->key_offsets);
    return 0;
}

static int clear_state(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->invalid_batch);
    Py_CLEAR(state->key_offsets);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Walks over records, see ottla.records.walker.",
    .m_size = sizeof(module_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = visit_state,
    .m_clear = clear_state,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }

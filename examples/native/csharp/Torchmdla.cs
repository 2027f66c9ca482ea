// Models of torchmdla in C#: the C interface in torchmdla/runtime.h, through P/Invoke. It needs no package and builds with
// .NET and with Mono, with unsafe code allowed.
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace Torchmdla
{
    // Error of the library. Exception is the name of the exception that the program raised, such as builtins.ValueError.
    public sealed class ModelException : Exception
    {
        public int Status { get; }
        public string Raised { get; }

        internal ModelException(int status, string message, string raised) : base(message)
        {
            Status = status;
            Raised = raised;
        }
    }

    // Dense tensor of float32, in the order of C.
    public sealed class Tensor
    {
        public long[] Sizes { get; }
        public float[] Data { get; }

        public Tensor(float[] data, params long[] sizes)
        {
            long count = 1;
            foreach (long size in sizes)
                count *= size;
            if (count != data.Length)
                throw new ArgumentException($"a tensor of {count} elements cannot have {data.Length} numbers");
            Sizes = sizes;
            Data = data;
        }
    }

    // Model in a file. Threads may share it.
    public sealed class Model : IDisposable
    {
        internal IntPtr Handle;

        // Load a file. 0 threads is one for each CPU.
        public Model(string path, int threads = 0)
        {
            var options = new Native.Options { Version = Native.Version, Threads = threads };
            Native.Check(Native.tmdla_load(Native.Text(path), ref options, out Handle));
        }

        public Session NewSession() => new Session(this);

        public void Dispose()
        {
            Native.tmdla_free(Handle);
            Handle = IntPtr.Zero;
        }
    }

    // Calls of a model with the state that its methods write. One thread at a time may use a session.
    public sealed unsafe class Session : IDisposable
    {
        private readonly Model model;
        private readonly Dictionary<string, UIntPtr> methods = new Dictionary<string, UIntPtr>();
        private IntPtr handle;

        internal Session(Model model)
        {
            this.model = model;
            Native.Check(Native.tmdla_session_create(model.Handle, out handle));
        }

        // Call a method. Arguments and results are null, bool, int, long, double, string, Tensor, object[] (a list or a tuple)
        // or Dictionary<object, object>.
        public object Call(string method, params object[] arguments)
        {
            if (!methods.TryGetValue(method, out UIntPtr number))
            {
                Native.Check(Native.tmdla_find_method(model.Handle, Native.Text(method), out number));
                methods[method] = number;
            }
            using (var passed = new Arguments())
            {
                Native.Value* values = passed.Add(arguments);
                Native.Check(Native.tmdla_call(handle, number, values, (UIntPtr)arguments.Length, out Native.Value* result));
                return Read(result);
            }
        }

        // Set the state to that of the file.
        public void Reset() => Native.Check(Native.tmdla_session_reset(handle));

        public void Dispose()
        {
            Native.tmdla_session_free(handle);
            handle = IntPtr.Zero;
        }

        private static object Read(Native.Value* value)
        {
            switch (value->Kind)
            {
                case Native.None: return null;
                case Native.Boolean: return value->Integer != 0;
                case Native.Integer: return value->Integer;
                case Native.Real: return BitConverter.Int64BitsToDouble(value->Integer);
                case Native.String: return Encoding.UTF8.GetString((byte*)value->Address, (int)value->Count);
                case Native.TensorKind: return ReadTensor((Native.CTensor*)value->Address);
            }
            var items = new object[(int)value->Count];
            for (int i = 0; i < items.Length; ++i)
                items[i] = Read((Native.Value*)value->Address + i);
            if (value->Kind != Native.Dictionary)
                return items;
            var entries = new Dictionary<object, object>();
            for (int i = 0; i < items.Length; i += 2)
                entries[items[i]] = items[i + 1];
            return entries;
        }

        private static Tensor ReadTensor(Native.CTensor* tensor)
        {
            if (tensor->DType != Native.Float32)
                throw new NotSupportedException($"a tensor of dtype {tensor->DType} is not float32");
            var sizes = new long[tensor->Rank];
            long count = 1;
            for (int i = 0; i < sizes.Length; ++i)
                count *= sizes[i] = tensor->Sizes[i];
            var data = new float[count];
            if (count != 0)
                Marshal.Copy((IntPtr)tensor->Data, data, 0, data.Length);
            return new Tensor(data, sizes);
        }
    }

    // Arguments of a call, in memory that does not move until the call returns.
    internal sealed unsafe class Arguments : IDisposable
    {
        private readonly List<GCHandle> pinned = new List<GCHandle>();
        private readonly List<IntPtr> blocks = new List<IntPtr>();

        public Native.Value* Add(object[] values)
        {
            var result = (Native.Value*)Allocate(sizeof(Native.Value) * values.Length);
            for (int i = 0; i < values.Length; ++i)
                result[i] = Add(values[i]);
            return result;
        }

        private Native.Value Add(object value)
        {
            if (value == null)
                return new Native.Value { Kind = Native.None };
            if (!Converters.TryGetValue(value.GetType(), out Func<Arguments, object, Native.Value> convert))
                throw new ArgumentException($"a method cannot take a {value.GetType()}");
            return convert(this, value);
        }

        private static readonly Dictionary<Type, Func<Arguments, object, Native.Value>> Converters =
            new Dictionary<Type, Func<Arguments, object, Native.Value>>
        {
            [typeof(bool)] = (_, flag) => Number(Native.Boolean, (bool)flag ? 1 : 0),
            [typeof(int)] = (_, number) => Number(Native.Integer, (int)number),
            [typeof(long)] = (_, number) => Number(Native.Integer, (long)number),
            [typeof(double)] = (_, number) => Number(Native.Real, BitConverter.DoubleToInt64Bits((double)number)),
            [typeof(string)] = (self, text) => self.AddText((string)text),
            [typeof(Tensor)] = (self, tensor) => self.AddTensor((Tensor)tensor),
            [typeof(object[])] = (self, items) => self.AddItems(Native.List, (object[])items),
            [typeof(Dictionary<object, object>)] = (self, entries) => self.AddEntries((Dictionary<object, object>)entries),
        };

        private static Native.Value Number(int kind, long bits) => new Native.Value { Kind = kind, Integer = bits };

        private Native.Value AddItems(int kind, object[] items) =>
            new Native.Value { Kind = kind, Count = (ulong)items.Length, Integer = (long)Add(items) };

        private Native.Value AddEntries(Dictionary<object, object> entries)
        {
            var items = new List<object>();
            foreach (var entry in entries)
            {
                items.Add(entry.Key);
                items.Add(entry.Value);
            }
            return AddItems(Native.Dictionary, items.ToArray());
        }

        private Native.Value AddText(string text)
        {
            byte[] bytes = Native.Text(text);
            return new Native.Value { Kind = Native.String, Count = (ulong)bytes.Length - 1, Integer = (long)Pin(bytes) };
        }

        private Native.Value AddTensor(Tensor tensor)
        {
            var passed = (Native.CTensor*)Allocate(sizeof(Native.CTensor));
            *passed = new Native.CTensor
            {
                Data = (float*)Pin(tensor.Data), DType = Native.Float32, Rank = tensor.Sizes.Length,
                Sizes = (long*)Pin(tensor.Sizes)
            };
            return new Native.Value { Kind = Native.TensorKind, Integer = (long)passed };
        }

        private IntPtr Pin(object array)
        {
            pinned.Add(GCHandle.Alloc(array, GCHandleType.Pinned));
            return pinned[pinned.Count - 1].AddrOfPinnedObject();
        }

        private void* Allocate(int bytes)
        {
            blocks.Add(Marshal.AllocHGlobal(Math.Max(bytes, 1)));
            return (void*)blocks[blocks.Count - 1];
        }

        public void Dispose()
        {
            foreach (GCHandle handle in pinned)
                handle.Free();
            foreach (IntPtr block in blocks)
                Marshal.FreeHGlobal(block);
        }
    }

    internal static unsafe class Native
    {
        public const uint Version = 2;  // TMDLA_API_VERSION
        public const int Float32 = 6;   // of tmdla_dtype
        // Of tmdla_kind.
        public const int None = 0, Boolean = 1, Integer = 2, Real = 3, String = 4, TensorKind = 5, List = 6, Dictionary = 8;

        [StructLayout(LayoutKind.Sequential)]
        public struct Options
        {
            public uint Version;
            public int Threads, AnyOwner;
        }

        [StructLayout(LayoutKind.Sequential)]
        public struct CTensor
        {
            public float* Data;
            public int DType, Rank;
            public long* Sizes, Strides;
        }

        // The union is an integer here: a number, the bits of a double, or an address.
        [StructLayout(LayoutKind.Sequential)]
        public struct Value
        {
            public int Kind, Unused;
            public ulong Count;
            public long Integer;

            public void* Address => (void*)Integer;
        }

        private const string Library = "torchmdla_runtime";

        [DllImport(Library)] public static extern int tmdla_load(byte[] path, ref Options options, out IntPtr model);
        [DllImport(Library)] public static extern void tmdla_free(IntPtr model);
        [DllImport(Library)] public static extern int tmdla_find_method(IntPtr model, byte[] name, out UIntPtr method);
        [DllImport(Library)] public static extern int tmdla_session_create(IntPtr model, out IntPtr session);
        [DllImport(Library)] public static extern int tmdla_session_reset(IntPtr session);
        [DllImport(Library)] public static extern void tmdla_session_free(IntPtr session);
        [DllImport(Library)]
        public static extern int tmdla_call(IntPtr session, UIntPtr method, Value* arguments, UIntPtr count, out Value* result);
        [DllImport(Library)] private static extern IntPtr tmdla_last_error();
        [DllImport(Library)] private static extern IntPtr tmdla_last_exception();

        public static void Check(int status)
        {
            if (status != 0)
                throw new ModelException(
                    status, Marshal.PtrToStringAnsi(tmdla_last_error()), Marshal.PtrToStringAnsi(tmdla_last_exception()));
        }

        // Return a text in UTF-8 with a 0 after its last byte.
        public static byte[] Text(string text) => Encoding.UTF8.GetBytes(text + "\0");
    }
}
